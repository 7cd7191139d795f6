"""Measured values as tables: of a run at its end, and for each noise level."""
