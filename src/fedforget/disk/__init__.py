"""Files and databases below one directory: durable, private, and never trusted when they are read."""
