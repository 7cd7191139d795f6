"""Blocks of draws, seeds, precision, and exact products of integers."""
