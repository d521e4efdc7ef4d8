"""The demonstration (``fedforget demo``) and its plot."""
