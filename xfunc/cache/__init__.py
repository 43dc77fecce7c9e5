"""The cache of programs: by the value of a function and what it was called with."""
