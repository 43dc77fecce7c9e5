"""Several devices and processes: shardings, and what processes tell each other."""
