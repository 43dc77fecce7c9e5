"""Estimates of a program's cost and memory from its HLO."""
