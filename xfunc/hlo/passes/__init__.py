"""Passes over HLO: one file, one pass."""
