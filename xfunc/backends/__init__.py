"""Runtimes, which run and record programs, behind one protocol."""
