"""Host-side costs of xfunc beside those of its peers: ``python -m benchmarks trace dispatch scan``."""
