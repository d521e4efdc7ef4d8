"""The demonstration and its picture."""
