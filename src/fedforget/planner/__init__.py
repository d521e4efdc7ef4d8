"""The cost of a plan before training: exact laws, storage, traffic, batching windows, and the search for a plan."""
