"""`checkpoint_name`: a name for a value, which checkpoint policies can refer to."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TypeVar

import torch

from xfunc import tree
from xfunc.core.avals import array_of, aval_of
from xfunc.errors import fail, short_repr
from xfunc.graph import build
from xfunc.graph.graph import Graph
from xfunc.program.annotation import Annotation
from xfunc.program.bind import bind
from xfunc.program.primitive import Tensor
from xfunc.remat.names import named
from xfunc.stages.checks import arrays, as_tensors, labels_in
from xfunc.torchlib.eager import is_eager
from xfunc.trace import tracing

T = TypeVar("T")


def checkpoint_name(x: T, name: str) -> T:
    """Name the leaves of a tree, for policies of `checkpoint` and `scan`.

    The name belongs to the value; the value itself is unchanged, whether it is kept or not. Outside
    a function that is differentiated it means nothing.

    Args:
        x: a tree of tensors and numbers.
        name: as given to `checkpoint_policies.save_only_these_names`.

    Returns:
        A tree like `x`, with tensors of the same shapes, dtypes and values.

    Raises:
        TypeError: the name is not a string, or is empty; or a leaf is not an array.

    Source: ``jax.ad_checkpoint.checkpoint_name``.
    """
    _check(name)
    leaves, structure = tree.flatten(as_tensors(x))
    leaves = arrays(leaves, "checkpoint_name", labels_in(x, "x"))
    if tracing.current() is None or is_eager():
        return tree.unflatten(structure, leaves)
    return tree.unflatten(structure, [_name(t, name) for t in leaves])


def _check(name: object) -> None:
    if not isinstance(name, str) or not name or "\n" in name:
        fail(
            TypeError,
            f"checkpoint_name was given {short_repr(name)} as name",
            "name the value by a string of one line that is not empty.",
        )


def _name(t: torch.Tensor, name: str) -> torch.Tensor:
    return bind(Name((aval_of(t),), name), [t])[0]


@dataclasses.dataclass(frozen=True)
class Name(Annotation):
    """The primitive: one value with a name. Derivatives have none."""

    text: str

    @property
    def graph(self) -> Graph:
        (x,) = build.parameters([array_of(self.avals[0])])
        return Graph(self.name, [x], [named(x, self.text)])

    def derivatives(self, values: Sequence[Tensor | None]) -> list[Tensor | None]:
        return list(values)
