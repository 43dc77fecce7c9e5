"""vmap of functions that write in place, and over axes sharded by a mesh.

NOTE [tensors that become batched]: torch.func.vmap cannot write values that differ from example to
example into a tensor that all examples share. But if the mapped function made that tensor itself,
``y = torch.zeros(3)``, it is merely not batched yet: each example has its own. Before such a write,
the contents of `y` are replaced with a batched tensor of the same values, and those of its views
with views of that tensor. torch makes an `nn.Parameter` without telling the trace: the number of
its data says whether that is from within the mapped function.

NOTE [examples that a mesh shards]: the size of a vmap with ``spmd_axis_name`` is a `Size`, which
knows the mesh axes. Whatever is derived from it, such as the batched program of a body,
knows them too, and any primitive's rule can get them by passing its batch size to `axes_of`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import torch

from xfunc.core.avals import short
from xfunc.errors import PurityError
from xfunc.torchlib import functorch
from xfunc.torchlib.torch_functions import operation_name
from xfunc.torchlib.values import tensors_in
from xfunc.torchlib.weak_references import held

if TYPE_CHECKING:
    from xfunc.trace.tracing import Trace

Tensor = torch.Tensor
T = TypeVar("T")


class Size(int):
    """A number of examples; see NOTE [examples that a mesh shards]."""

    axes: tuple[str, ...]

    def __new__(cls, n: int, axes: tuple[str, ...]) -> Size:
        size = super().__new__(cls, n)
        size.axes = axes
        return size


def axes_of(n: int) -> tuple[str, ...]:
    """The mesh axes that shard this number of examples."""
    return n.axes if isinstance(n, Size) else ()


def size_below(trace: Trace | None, n: int) -> int:
    """The size of the innermost vmap, where its level has just been left to apply a rule."""
    axes = () if trace is None else trace.batching.axes_at(len(functorch.levels()) + 1)
    return Size(n, axes) if axes else n


@dataclasses.dataclass
class _View:
    """How a view was made, and its position if that call returned several."""

    ref: weakref.ref[Tensor]
    of: Tensor
    make: Callable[[], Tensor | Sequence[Tensor]]
    place: int | None


@dataclasses.dataclass
class _Before:
    """What a trace had made before a vmap began: values by id; and a number that none of them has,
    nor any before it.
    """

    made: dict[int, weakref.ref[Tensor]]
    number: int


class Batching:
    """The vmaps that are open in a trace."""

    def __init__(self, trace: Trace):
        self._trace = trace
        self._before: dict[int, _Before] = {}  # made earlier, by level
        self._views: dict[int, _View] = {}
        self._axes: dict[int, tuple[str, ...]] = {}  # mesh axes, by level

    def axes_at(self, level: int) -> tuple[str, ...]:
        """The mesh axes that shard the examples of a level's vmap."""
        return self._axes.get(level, ())

    @property
    def is_open(self) -> bool:
        """Whether any vmap is open."""
        return bool(self._before)

    @contextlib.contextmanager
    def level(self, axes: tuple[str, ...]) -> Iterator[None]:
        """A block that runs the innermost vmap's function, whose examples the mesh `axes` shard."""
        number = functorch.level()
        # Below all levels (`functorch.bottom_level`) the count starts again.
        hidden = self._before.get(number)
        self._before[number] = _Before(self._trace.made.so_far(), self._trace.next_number())
        others = self._axes
        self._axes = {**others, number: axes} if axes or number in others else others
        try:
            yield
        finally:
            if hidden is None:
                del self._before[number]
            else:
                self._before[number] = hidden
            self._axes = others
            if not self._before:
                self._views.clear()

    def note(
        self,
        out: object,
        func: Callable[..., Tensor | Sequence[Tensor]],
        args: Sequence[object],
        kwargs: Mapping[str, object],
    ) -> None:
        """Remember how a view was made."""
        several = isinstance(out, (tuple, list))
        for i, t in enumerate(out if several else (out,)):
            if isinstance(t, Tensor) and not self._is_noted(t):
                base = next(tensors_in(args, kwargs), None)
                if base is None or base is t or self._before.keys() <= functorch.mapped_levels(t):
                    continue
                inner, of = functorch.innermost(t), functorch.innermost(base)
                if not torch._C._is_alias_of(inner, of):  # pyright: ignore[reportAttributeAccessIssue]
                    continue
                self._views.pop(id(t), None)  # of a view that is no more; these are in order
                self._views[id(t)] = _View(
                    weakref.ref(t), base, lambda: func(*args, **kwargs), i if several else None
                )

    def prepare(self, func: object, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        """Batch a tensor about to be written to, at each level where the new values are batched."""
        if functorch.VMAP not in functorch.levels():
            return
        written = kwargs.get("out", args[0] if args else None)
        sources = [
            (t, levels)
            for t in tensors_in(args, dict(kwargs))
            if (levels := functorch.mapped_levels(t))
        ]
        for target in written if isinstance(written, (tuple, list)) else (written,):
            if isinstance(target, Tensor) and sources:
                missing = set().union(*(levels for _, levels in sources))
                missing -= functorch.mapped_levels(target)
                if missing:
                    self._batch(func, target, [t for t, _ in sources], missing)
        if functorch.JVP in functorch.levels() and isinstance(written, Tensor):
            self._batch_tangent(func, written, [*tensors_in(args, dict(kwargs))])

    def _batch_tangent(self, func: object, target: Tensor, tensors: Sequence[Tensor]) -> None:
        """As `prepare`, for a write in which only the tangents differ between examples."""
        own = functorch.tangents(target)
        if not own:  # torch makes one.
            return
        dots = [d for d in functorch.tangents(*tensors) if functorch.is_batched(d)]
        missing = set().union(*map(functorch.mapped_levels, dots))
        missing -= set().union(*map(functorch.mapped_levels, own))
        if missing and all(self._is_made_inside(self._root(target), k) for k in missing):
            self._batch(func, target, dots, missing)

    def _root(self, target: Tensor) -> Tensor:
        """The tensor at the end of a chain of views."""
        while self._is_noted(target):
            target = self._views[id(target)].of
        return target

    def _is_noted(self, t: Tensor) -> bool:
        view = self._views.get(id(t))
        return view is not None and view.ref() is t

    def _batch(
        self, func: object, target: Tensor, sources: Sequence[Tensor], levels: set[int]
    ) -> None:
        root = self._root(target)
        if not all(self._is_made_inside(root, level) for level in levels):
            self._trace.refuse(
                PurityError,
                f"{operation_name(func)} writes values that differ along the axis of a vmap into "
                f"a tensor ({short(target)}) that the mapped function did not make itself",
                "compute a new tensor and return it, or write into a copy (x = x.clone()).",
            )
        # True for every example, and batched where the sources are.
        true = torch.ones((), dtype=torch.bool, device=root.device)
        for source in sources:
            true = true & source.new_ones((), dtype=torch.bool)
        self._replace(root, torch.where(true, root, root))
        touched = {id(root)}
        for key, view in self._views.items():
            alive = held(view.ref)
            if id(view.of) in touched and alive is not None:
                made = view.make()
                self._replace(alive, made if isinstance(made, Tensor) else made[view.place or 0])
                touched.add(key)

    def _replace(self, tensor: Tensor, by: Tensor) -> None:
        if isinstance(tensor, torch.nn.Parameter):  # It stays a leaf.
            by = torch.nn.Parameter(by.detach(), tensor.requires_grad)
        functorch.swap_contents(tensor, by)
        self._trace.known.forget(tensor)

    def _is_made_inside(self, tensor: Tensor, level: int) -> bool:
        before = self._before.get(level)
        if before is None or self._trace.is_input(tensor):  # None: the user's own torch.func.vmap
            return False
        if tensor not in self._trace.made:
            if not isinstance(tensor, torch.nn.Parameter) or not self._trace.owns(tensor):
                return False
            return self._trace.number_of(tensor) >= before.number
        there = before.made.get(id(tensor))
        return there is None or there() is not tensor


def vmap(
    trace: Trace | None,
    fun: Callable[..., T],
    dims: Sequence[int | None],
    args: Sequence[Tensor],
    axes: tuple[str, ...] = (),
) -> T:
    """`functorch.vmap` of a function that runs in a trace; mesh `axes` shard the examples."""
    if trace is None:
        return functorch.vmap(fun, dims, args)

    def run(*xs: Tensor) -> T:
        with trace.batching.level(axes):
            return fun(*xs)

    return functorch.vmap(run, dims, args)


def at_dim(t: Tensor, dim: int | None, wanted: int | None, n: int) -> Tensor:
    """`t` with its batch dimension at the given position; added if missing."""
    if wanted is None or dim == wanted:
        return t
    if dim is None:
        return t.unsqueeze(wanted).expand([*t.shape[:wanted], n, *t.shape[wanted:]])
    return t.movedim(dim, wanted)
