"""Is the run whole? Checks of every file, the doctor, and repair."""
