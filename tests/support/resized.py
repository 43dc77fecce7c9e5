"""Samples of torch's database of operations, with arrays of other sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch

import xfunc as xf
from benchmarks.operations.cases import Case, entries, samples_of
from benchmarks.operations.compare import UNDETERMINED, compare
from benchmarks.operations.run import REFUSALS

SMALLEST_TOLD = 5  # a smaller number among the arguments need not be a size

# Of these, eager torch is wrong, or what the samples become has no determined result.
LEFT_OUT = {
    **dict.fromkeys(
        ["special.bessel_j0", "special.bessel_j1", "special.bessel_y0", "special.bessel_y1"],
        "eager torch is right to 3e-7 only",
    ),
    **dict.fromkeys(
        ["cholesky_inverse", "cholesky_solve"],
        "eager torch's gradient counts the other triangle, which no value depends on",
    ),
    **dict.fromkeys(
        ["as_strided", "as_strided.partial_views", "as_strided_copy", "as_strided_scatter"],
        "eager torch reads the memory beside an array",
    ),
    **dict.fromkeys(
        ["nn.functional.pad.circular", "resize_", "resize_as_"],
        "eager torch leaves some of the result as it finds the memory",
    ),
    **dict.fromkeys(
        [f"nn.functional.max_unpool{n}d" for n in (1, 2, 3)], "places are written to twice"
    ),
    **dict.fromkeys(["linalg.cholesky_ex", "linalg.ldl_factor_ex"], "no matrix of this kind"),
    **dict.fromkeys(
        ["native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update"],
        "running statistics change in place",
    ),
    **dict.fromkeys(["nn.functional.batch_norm", "nn.functional.instance_norm"], "the same"),
    "matrix_exp": "numbers too large for a loss that is a sine",
    "nn.functional.binary_cross_entropy": "probabilities below 1 only",
    "to_sparse": "arrays that are sparse",
    **dict.fromkeys(["sparse.mm.reduce", "sparse.sampled_addmm"], "arrays that are sparse"),
    "nn.functional.embedding_bag": "places that are not in order",
    **dict.fromkeys(["bfloat16", "half", "chalf"], "the order of rounding"),
}


def names() -> list[str]:
    """The operations with samples that can be resized."""
    return [
        name
        for name, op in entries().items()
        if name not in LEFT_OUT
        and name.split(".")[0] not in UNDETERMINED
        and "random" not in name
        and "jiterator" not in name  # for GPUs only
        and "polygamma" not in name  # near a pole
        and {torch.float64, torch.int64} & set(op.dtypes)
    ]


Outputs = Callable[..., tuple[Any, Sequence[torch.Tensor]]]


def _number(results: Sequence[torch.Tensor]) -> torch.Tensor:
    return sum(((0.7 * a).sin().sum() for a in results), torch.zeros((), dtype=torch.float64))


class Resized(Case):
    """A sample of an operation, as a function of tensors of any sizes.

    Numbers among the arguments that are a size of a tensor in the sample follow that size.

    Attributes:
        sizes: of the sample's tensors, other than 0 and 1.
    """

    def __init__(self, name: str):
        op = entries()[name]
        dtype = torch.float64 if torch.float64 in op.dtypes else torch.int64
        super().__init__(op, samples_of(op, dtype, 1)[0])
        self._name = name
        self.watched = tuple(k for k in self.watched if self.tensors[k].is_floating_point())
        self.sizes = sorted({n for t in self.tensors for n in t.shape if n > 1})
        self._told = {
            n: (k, dim)
            for k, t in enumerate(self.tensors)
            for dim, n in enumerate(t.shape)
            if n >= SMALLEST_TOLD
        }

    def others(self, tensors: Sequence[torch.Tensor]) -> list[Any]:
        """The arguments that are no tensors, where they are sizes, of these tensors."""
        found = super().others(tensors)
        for k, a in enumerate(found):
            if type(a) is int and a in self._told:
                of, dim = self._told[a]
                found[k] = tensors[of].shape[dim]
        return found

    def resized(self, sizes: Mapping[int, int]) -> list[torch.Tensor]:
        """The sample's tensors with other sizes: its rows again, slightly changed."""
        generator = torch.Generator().manual_seed(0)
        found = []
        for t in self.tensors:
            for dim, n in enumerate(t.shape):
                if n in sizes:
                    t = t.index_select(dim, torch.arange(sizes[n]) % n)
            if t.is_floating_point() and t.numel():
                t = t * (1 + 0.05 * torch.rand(t.shape, generator=generator, dtype=t.dtype))
            found.append(t.contiguous())
        return found

    def outputs(self, *tensors: torch.Tensor) -> tuple[Any, tuple[torch.Tensor, ...]]:
        """The results, and those that can be differentiated."""
        return self(*tensors), self.smooth(tensors, self.reals(tensors))

    def with_gradient(self, f: Outputs) -> Callable[..., tuple[Any, Any]]:
        """The results of a function like `outputs`, and gradients of what all of them change."""

        def run(*tensors: torch.Tensor) -> tuple[Any, Any]:
            results = f(*tensors)[0]
            if not self.watched:
                return results, ()
            loss = xf.grad(lambda *tensors: _number(f(*tensors)[1]), argnums=self.watched)
            return results, loss(*tensors)

        return run

    def eager(self, tensors: Sequence[torch.Tensor]) -> tuple[Any, Any] | None:
        """The same by eager torch; None if it refuses these sizes."""
        try:
            results = self(*(t.clone() for t in tensors))
            if not self.watched:
                return results, ()
            given = [t.clone().requires_grad_(k in self.watched) for k, t in enumerate(tensors)]
            gradients = torch.autograd.grad(
                _number(self.outputs(*given)[1]),
                [given[k] for k in self.watched],
                allow_unused=True,
                materialize_grads=True,
            )
        except Exception:
            return None
        return results, gradients

    def check(
        self,
        run: Callable[..., Any],
        tensors: Sequence[torch.Tensor],
        expected: tuple[Any, Any],
        plain: Sequence[torch.Tensor] | None = None,
    ) -> None:
        """That a function returns results and gradients as expected.

        What it refuses by name, `jit` alone must refuse, too, for `plain` or else for `tensors`.
        """
        try:
            results, gradients = xf.device_get(run(*tensors))
        except REFUSALS as error:
            with pytest.raises(type(error), match=r"\nHint: "):
                xf.jit(self.with_gradient(self.outputs))(*xf.device_get(plain or tensors))
            return
        assert compare(self._name, results, expected[0]) is None
        assert compare(self._name, gradients, expected[1], derivative=True) is None
