"""What a GPU does with exported programs, beside its own torch and JAX.

torch_xla has no release for GPUs. So ``python -m benchmarks.gpu export FOLDER`` traces and
exports where torch_xla is, and ``python -m benchmarks.gpu run FOLDER`` loads and runs where there
are a GPU, torch and JAX.
"""
