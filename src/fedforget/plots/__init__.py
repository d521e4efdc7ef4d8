"""Plots of a plan's costs, and the shared parts of all plots."""
