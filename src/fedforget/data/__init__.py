"""Datasets: who has which samples."""
