"""Kernels for the operations that torch_xla does not lower, or lowers wrongly."""

from xfunc.backends.torch_xla.runtime import at_start
from xfunc.ops.registry import kernel as kernel
from xfunc.ops.start import start

at_start(start)
