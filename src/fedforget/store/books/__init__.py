"""The clients' books on disk: files of columns, and the tree over the data."""
