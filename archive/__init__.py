"""Builds what the handler runs: weights, graphs, archives, configuration."""
