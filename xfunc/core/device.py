"""The device type of traced tensors, and torch's dispatch keys for it, by the tracer in use.

Attributes:
    TRACER: "torch_xla", or "own": see the environment variable ``XFUNC_TRACER``.
    TYPE: the device type.
    KEY, AUTOGRAD: dispatch keys.
"""

from __future__ import annotations

import os

TRACER = os.environ.get("XFUNC_TRACER") or "torch_xla"
KEY = "Lazy" if TRACER == "own" else "XLA"
TYPE = KEY.lower()
AUTOGRAD = f"Autograd{KEY}"
