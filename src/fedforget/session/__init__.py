"""One command's work on a run: its learner, its federation, its status."""
