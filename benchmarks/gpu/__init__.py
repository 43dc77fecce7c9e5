"""What a GPU does with programs traced, compiled and run there, beside its own torch and JAX.

``python -m benchmarks.gpu`` on the machine with the GPU; with ``--small`` on any, as a check.
"""
