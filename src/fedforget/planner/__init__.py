"""What a plan will cost before anything is trained: exact laws, storage, windows, search."""
