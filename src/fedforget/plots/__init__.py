"""Pictures of what was planned and of what happened."""
