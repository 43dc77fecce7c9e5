"""Samples of torch's operations, as functions of tensors."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch

import xfunc as xf

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "complex64": torch.complex64,
    "complex128": torch.complex128,
    "int64": torch.int64,
    "bool": torch.bool,
}


def entries() -> dict[str, Any]:
    """torch's database by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    if not hasattr(torch, "_lazy"):
        # torch's samples that set a seed end a step of the tracer that the device "lazy" was for.
        torch._lazy = SimpleNamespace(mark_step=lambda: None)  # type: ignore[attr-defined]
    return {full_name(op): op for op in op_db}


def full_name(op: Any) -> str:
    """``name.variant``."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def spread(items: Sequence[Any], n: int) -> list[Any]:
    """At most `n` items, evenly from the first to the last; one is that in the middle."""
    if len(items) <= n:
        return list(items)
    if n == 1:
        return [items[len(items) // 2]]
    return [items[round(k * (len(items) - 1) / (n - 1))] for k in range(n)]


def samples_of(op: Any, dtype: torch.dtype, n: int) -> list[Any]:
    """Some of an entry's samples; the only one has numbers, if any of them has."""
    torch.manual_seed(0)
    grad = op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    samples = list(op.sample_inputs("cpu", dtype, requires_grad=grad))
    if n == 1:
        samples = list(filter(_has_numbers, samples)) or samples
    return spread(samples, n)


def _has_numbers(sample: Any) -> bool:
    found = arrays((sample.input, tuple(sample.args), sample.kwargs))
    return not found or any(x.numel() for x in found)


def arrays(tree: Any) -> list[torch.Tensor]:
    """The tensors of a result."""
    return [a for a in xf.tree.leaves(tree) if isinstance(a, torch.Tensor)]


def is_smooth(x: torch.Tensor) -> bool:
    """Whether there are derivatives of and by a tensor."""
    return x.is_floating_point() or x.is_complex()


def as_real(x: torch.Tensor) -> torch.Tensor:
    """A complex tensor as pairs of real numbers."""
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x


def _half(t: torch.Tensor) -> torch.Tensor:
    """Without subnormal numbers, which XLA takes for zero on the CPU."""
    half = as_real(t / 2)
    half = torch.where(half.abs() < torch.finfo(t.dtype).tiny, torch.zeros_like(half), half)
    return torch.view_as_complex(half) if t.is_complex() else half


class Case:
    """One sample of an operation as a function of its tensors.

    Attributes:
        leaves: its arguments; None for the tensors.
        tensors: the arguments that are tensors.
        watched: which of them there are derivatives by.
    """

    def __init__(self, op: Any, sample: Any):
        self._op, self._process = op, sample.output_process_fn_grad
        kwargs = {k: v for k, v in sample.kwargs.items() if k != "device"}
        leaves, self._tree = xf.tree.flatten((sample.input, tuple(sample.args), kwargs))
        self._places = [i for i, a in enumerate(leaves) if isinstance(a, torch.Tensor)]
        # An array has no strides: the samples that are views become arrays of their own.
        self.tensors = [leaves[i].detach().contiguous().clone() for i in self._places]
        self.watched = tuple(
            k
            for k, i in enumerate(self._places)
            if leaves[i].requires_grad and is_smooth(leaves[i])
        )
        self.leaves = [None if isinstance(a, torch.Tensor) else a for a in leaves]

    def __call__(self, *tensors: torch.Tensor) -> Any:
        first, args, kwargs = self._arguments(tensors)
        out = self._op.op(first, *args, **kwargs)
        return tuple(out) if isinstance(out, torch.Size) else out

    def others(self, tensors: Sequence[torch.Tensor]) -> list[Any]:
        """The arguments that are no tensors, at their places among all."""
        return list(self.leaves)

    def _arguments(self, tensors: Sequence[torch.Tensor]) -> Any:
        leaves = self.others(tensors)
        for i, t in zip(self._places, tensors, strict=True):
            leaves[i] = t
        return xf.tree.unflatten(self._tree, leaves)

    def reals(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The watched among the tensors; complex ones as pairs of real numbers."""
        return [as_real(tensors[k]) for k in self.watched]

    def smooth(
        self, tensors: Sequence[torch.Tensor], reals: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, ...]:
        """The results that can be differentiated, as real tensors, with `reals` as watched."""
        full = list(tensors)
        for k, x in zip(self.watched, reals, strict=True):
            full[k] = torch.complex(x[..., 0], x[..., 1]) if full[k].is_complex() else x
        first, args, kwargs = self._arguments(full)
        # The wrapper makes a matrix symmetric, for one, whose function is defined for such only.
        out = self._process(self._op.gradcheck_wrapper(self._op.op, first, *args, **kwargs))
        return tuple(as_real(a) for a in arrays(out) if is_smooth(a))

    def other(self) -> list[torch.Tensor]:
        """A second example of the same shapes, for a batch; the same where torch takes no other."""
        # Integers beside other numbers are mostly places, and belong to each other.
        whole = not any(map(is_smooth, self.tensors))
        changed = [
            _half(t) if is_smooth(t) else t.flip(0) if whole and t.ndim else t.clone()
            for t in self.tensors
        ]
        try:
            self(*[t.clone() for t in changed])
        except Exception:
            return [t.clone() for t in self.tensors]
        return changed
