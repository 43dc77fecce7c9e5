"""Importing torch_xla, without the parts that only its own transforms need.

`import torch_xla` (2.9) takes 0.2 s for the parts that xfunc uses, and 2.1 s for parts that import
torch's compilers, `torch._dynamo` and `torch._inductor`: its patches of torch, and its export to
StableHLO. It also changes torch for the whole process: it replaces `torch.nn.GRU` and
`clip_grad_norm_` by slower versions with fewer options, and makes `torch.compile` specialise on
floats and on each new size. So these parts are left out where xfunc is the first to import
torch_xla, and loaded on first access.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
from collections.abc import Iterator

import torch

_PATCHES, _EXPORT = "torch_xla._patched_functions", "torch_xla.stablehlo"
# The names that `import torch_xla` imports from there.
_EXPORTED = ("save_as_stablehlo", "save_torch_model_as_stablehlo")
_DYNAMO = "torch._dynamo"


def load() -> types.ModuleType:
    """torch_xla, imported if necessary."""
    if "torch_xla" not in sys.modules:
        with _left_out(), _dynamo_unchanged():
            import torch_xla
        for name in _EXPORTED:
            delattr(torch_xla, name)
        torch_xla.__getattr__ = _ask_later
    return importlib.import_module("torch_xla")


def is_ours() -> bool:
    """Whether torch_xla was imported by `load`."""
    return vars(sys.modules["torch_xla"]).get("__getattr__") is _ask_later


def _ask_later(name: str) -> object:
    """An attribute of torch_xla that was left out."""
    if name in _EXPORTED:
        return getattr(importlib.import_module(_EXPORT), name)
    if f"torch_xla.{name}" in (_EXPORT, _PATCHES):
        return importlib.import_module(f"torch_xla.{name}")
    raise AttributeError(f"module 'torch_xla' has no attribute {name!r}")


@contextlib.contextmanager
def _left_out() -> Iterator[None]:
    """Let empty modules stand in for the parts that are left out."""
    patches, export = types.ModuleType(_PATCHES), types.ModuleType(_EXPORT)
    vars(patches)["_apply_patches"] = lambda: None
    vars(export).update(dict.fromkeys(_EXPORTED))
    sys.modules.update({_PATCHES: patches, _EXPORT: export})
    try:
        yield
    finally:
        del sys.modules[_PATCHES], sys.modules[_EXPORT]


class _NotLoaded(types.ModuleType):
    """`torch._dynamo`, whose settings can be assigned before it is imported, without effect."""

    def __init__(self) -> None:
        super().__init__(_DYNAMO)
        self.config = types.SimpleNamespace()

    def __getattr__(self, name: str) -> object:  # for other threads
        return getattr(importlib.import_module(_DYNAMO), name)


@contextlib.contextmanager
def _dynamo_unchanged() -> Iterator[None]:
    """Restore the settings of `torch.compile`."""
    loaded = sys.modules.get(_DYNAMO)
    if loaded is not None:
        names = "automatic_dynamic_shapes", "specialize_float"
        with loaded.config.patch({name: getattr(loaded.config, name) for name in names}):
            yield
        return
    stand_in = _NotLoaded()
    setattr(torch, "_dynamo", stand_in)  # noqa: B010 (it is no attribute that torch declares)
    try:
        yield
    finally:
        if vars(torch).get("_dynamo") is stand_in:  # else somebody has imported it
            delattr(torch, "_dynamo")
