"""Kernels for the operations that torch_xla does not lower, or lowers wrongly."""

from .registry import kernel as kernel
from .start import start as start
