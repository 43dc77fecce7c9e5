"""The device type of traced tensors, and torch's dispatch keys for it.

Attributes:
    TYPE: the device type.
    KEY, AUTOGRAD: dispatch keys.
    ACCELERATORS: the device types that mean this one in traced code.
    AUTOCAST: the device types of ``torch.autocast`` that take effect, by precedence.
    AUTOGRAD_WRAPPED: the key under which torch differentiates tensors that its transforms have
        wrapped: torch.func keeps the device of CPU, CUDA and XLA tensors in the key, and "other"
        stands for all further ones.
"""

from __future__ import annotations

import importlib.util


def is_installed(package: str) -> bool:
    """Whether there is a package of this name, without importing it."""
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):  # Something refuses to look for it.
        return False


KEY = "Lazy"
TYPE = KEY.lower()
ACCELERATORS = frozenset(("cuda", "xla", TYPE))
AUTOCAST = ("cuda", "xla", "cpu")
AUTOGRAD = f"Autograd{KEY}"
AUTOGRAD_WRAPPED = "AutogradOther"
