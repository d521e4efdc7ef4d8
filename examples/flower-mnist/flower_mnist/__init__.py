"""Handwritten digits on Flower, with exact unlearning."""
