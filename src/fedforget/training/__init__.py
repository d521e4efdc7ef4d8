"""Torch: local SGD and the models."""
