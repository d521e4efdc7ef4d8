"""Datasets and their partition over clients."""
