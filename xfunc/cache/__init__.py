"""The cache of programs, keyed by the value of a function and its arguments."""
