"""Measurements: ``python -m load_tests VERB``."""
