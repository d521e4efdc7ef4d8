"""Federated averaging in Flower, for comparison."""
