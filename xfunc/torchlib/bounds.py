"""Values that are known during tracing; and out-of-bounds indices, refused where they are known.

A program cannot raise, so an index that is computed from an input is clamped or dropped, as in JAX.
But a constant index (``x[[0, 9]]``, ``torch.tensor([9])``, ``torch.arange(9)`` and so on) is known
while the function is traced, and one that eager torch would refuse is a mistake: `Known` keeps the
values of such tensors, and of values computed only from them.
"""

from __future__ import annotations

import re
import types
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from xfunc.core.avals import short
from xfunc.core.torch_versions import take_along_dim_counts_from_end
from xfunc.errors import fail
from xfunc.torchlib.indexing import dimensions
from xfunc.torchlib.torch_functions import Kind, functions, operation_name

Tensor = torch.Tensor
Found = Iterator[tuple[Tensor, int, int, bool]]
Args = Sequence[Any]  # the arguments of a torch function
Kwargs = Mapping[str, object]

_LARGEST = 4096  # the most elements a tensor may have for its values to be kept
_LARGEST_MASK = 1 << 20
_COMPUTED = frozenset(
    (Kind.PLAIN, Kind.INDEX, Kind.SIZED, Kind.MOVE, Kind.REPEAT, Kind.DATA_SHAPED)
)
PARTS = frozenset(
    functions(
        *("unbind", "split", "split_with_sizes", "chunk", "tensor_split", "meshgrid"),
        *("max", "min", "aminmax", "sort", "cummax", "cummin", "broadcast_tensors"),
    )
)
"""Functions that may return several tensors whose values are followed."""
_FACTORIES = frozenset(functions("arange", "eye", "full", "linspace", "ones", "zeros"))


_DIVIDES = re.compile("div|mod|remainder")


def _is_computation(func: Callable[..., object]) -> bool:
    """Whether a function of torch runs no other code, and draws nothing."""
    return type(func) is not types.FunctionType or func.__module__ in _COMPUTE


_COMPUTE = frozenset(("torch.functional", "torch.nn.functional", "torch._tensor"))


def _compute(kind: Kind, func: Callable[..., Any], args: tuple[object, ...], kwargs: Kwargs) -> Any:
    """The result of a call on the CPU; NotImplemented if it has none."""
    if not _is_computation(func):
        return NotImplemented
    kwargs = {k: v for k, v in kwargs.items() if k != "device"}
    if kind is Kind.MOVE:
        args = tuple(a for a in args if not isinstance(a, (str, torch.device)))
    with torch._C.DisableTorchFunction(), torch._C._DisableFuncTorch():
        if _DIVIDES.search(func.__name__) and any(map(_holds_least, args)):
            return NotImplemented  # torch ends the process if it divides the least integer by -1
        try:  # a program may support what the CPU does not
            return func(*args, **kwargs)
        except (RuntimeError, TypeError, IndexError, ValueError):
            return NotImplemented


def _holds_least(x: object) -> bool:
    if not isinstance(x, Tensor) or x.dtype is torch.bool or x.is_floating_point():
        return False
    return not x.is_complex() and bool((x == torch.iinfo(x.dtype).min).any())


class Known:
    """The values of small tensors that depend on no input, by tensor."""

    def __init__(self) -> None:
        self._values: dict[int, tuple[weakref.ref[Tensor], int, Tensor]] = {}

    def __bool__(self) -> bool:
        return bool(self._values)

    def put(self, tensor: Tensor, value: Tensor) -> None:
        """Keep the value (on the CPU) of a tensor."""
        if tensor.is_inference():  # Its changes are not counted.
            return
        if value.numel() <= (_LARGEST_MASK if value.dtype is torch.bool else _LARGEST):
            self._values[id(tensor)] = (weakref.ref(tensor), tensor._version, value)

    def forget(self, tensor: Tensor) -> None:
        """Forget a tensor whose value may change."""
        self._values.pop(id(tensor), None)

    def clear(self) -> None:
        """Forget all tensors."""
        self._values.clear()

    def find(self, x: object) -> Tensor | None:
        """The value of a tensor, or of a list of ints, if it is known."""
        if isinstance(x, Tensor):
            ref, version, value = self._values.get(id(x), (None, 0, None))
            # Values changed in place since, perhaps through a view, are no longer known.
            return value if ref is not None and ref() is x and x._version == version else None
        return torch.tensor(x) if isinstance(x, (list, range)) and _all_ints(x) else None

    def follow(
        self,
        kind: Kind,
        func: Callable[..., object],
        args: tuple[object, ...],
        kwargs: Kwargs,
        out: Sequence[Tensor],
    ) -> None:
        """Keep the values of the results if the arguments of the call are known."""
        made = func in _FACTORIES
        if not made:
            if not self._values or kind not in _COMPUTED:
                return
            if args and isinstance(args[0], Tensor) and id(args[0]) not in self._values:
                return
        if any(o.numel() > _LARGEST for o in out):
            return
        try:
            args, kwargs, n = self._replaced_in_call(args, kwargs)
        except LookupError:
            return
        if not (made or n):
            return
        found = _compute(kind, func, args, kwargs)
        if found is NotImplemented:
            return
        values = found if isinstance(found, (tuple, list)) else (found,)
        for o, value in zip(out, values, strict=True):
            if isinstance(value, Tensor) and (value.shape, value.dtype) == (o.shape, o.dtype):
                self.put(o, value)

    def changed(
        self, func: Callable[..., object], args: tuple[object, ...], kwargs: Kwargs
    ) -> Tensor | None:
        """The value that an operation in place gives its first argument, if it will be known."""
        target = args[0] if args else None
        if id(target) not in self._values or not isinstance(target, Tensor):
            return None
        if target.numel() > _LARGEST:
            return None
        try:
            (old, *rest), kwargs, _ = self._replaced_in_call(args, kwargs)
        except LookupError:
            return None
        assert isinstance(old, Tensor)
        value = old.clone()
        if _compute(Kind.IN_PLACE, func, (value, *rest), kwargs) is NotImplemented:
            return None
        # The operation may have set flags of the copy, or its sizes.
        return value.detach() if value.shape == target.shape else None

    def _replaced_in_call(
        self, args: tuple[object, ...], kwargs: Kwargs
    ) -> tuple[tuple[object, ...], Kwargs, int]:
        """The same as `_replaced`, for arguments by place and by name."""
        args, n = self._replaced(args)
        named, more = self._replaced(tuple(kwargs.values()))
        return args, dict(zip(kwargs, named, strict=True)), n + more

    def _replaced(self, args: Sequence[object]) -> tuple[tuple[object, ...], int]:
        """The arguments with values for tensors, and how many; raises if one is unknown."""
        out, n = [], 0
        for a in args:
            if isinstance(a, Tensor):
                value = self.find(a)
                if value is None:
                    raise LookupError
                a, n = value, n + 1
            elif isinstance(a, (tuple, list)):
                inside, k = self._replaced(a)
                a, n = type(a)(inside) if type(a) in (tuple, list) else inside, n + k
            out.append(a)
        return tuple(out), n

    def check(self, func: object, name: str, args: Args, kwargs: Kwargs) -> None:
        """Raise an IndexError for an index that eager torch would refuse."""
        for index, dim, size, negative in _READS[func](self, args, kwargs):
            outside = (index >= size) | (index < (-size if negative else 0))
            if outside.any():
                first = int(index[outside].flatten()[0])
                low = f"{-size} to {size - 1}" if negative else f"0 to {size - 1}"
                where = f"dimension {dim} of {short(args[0])}" if dim >= 0 else "its input"
                fail(
                    IndexError,
                    f"{operation_name(func)} was given the index {first}, which is out of "
                    f"bounds: {where} has {size}",
                    f"give indices from {low}." if size else "leave out empty dimensions.",
                    function=name,
                )


def _all_ints(x: Collection[object]) -> bool:
    return bool(len(x)) and all(
        type(i) is int or (isinstance(i, (list, range)) and _all_ints(i)) for i in x
    )


def checks(func: object) -> bool:
    """Whether a function takes indices that `Known.check` looks at."""
    return func in _READS


# -- the indices of a call: values, dimension (-1: all), its size, whether they may be negative


def _argument(
    args: Sequence[object], kwargs: Mapping[str, object], place: int, name: str
) -> object:
    return args[place] if len(args) > place else kwargs.get(name)


def _along(
    dim_at: int,
    index_at: int,
    index: str = "index",
    counts_from_end: Callable[[], bool] = lambda: False,
) -> Callable[..., Found]:
    """For ``f(x, dim, index, ...)``."""

    def read(known: Known, args: Args, kwargs: Kwargs) -> Found:
        dim = _argument(args, kwargs, dim_at, "dim")
        value = known.find(_argument(args, kwargs, index_at, index))
        if value is None or not isinstance(args[0], Tensor):
            return
        if dim is None:  # take_along_dim, which counts from the end of a dimension only
            yield value, -1, args[0].numel(), False
        elif type(dim) is int and -max(args[0].ndim, 1) <= dim < max(args[0].ndim, 1):
            dim %= max(args[0].ndim, 1)
            yield value, dim, args[0].shape[dim] if args[0].ndim else 1, counts_from_end()

    return read


def _flat(known: Known, args: Args, kwargs: Kwargs) -> Found:
    value = known.find(_argument(args, kwargs, 1, "index"))
    if value is not None:
        yield value, -1, args[0].numel(), True


def _entries(known: Known, args: Args, kwargs: Kwargs) -> Found:
    """For ``x[index]``, ``x[index] = y`` and ``x.index_put(indices, y)``."""
    x, index = args[0], _argument(args, kwargs, 1, "indices")
    entries = index if isinstance(index, tuple) else (index,)
    used = [dimensions(e) for e in entries]
    dim = 0
    for entry, n in zip(entries, used, strict=True):
        value = None if isinstance(entry, int) else known.find(entry)
        if value is not None and n == 1 and dim < x.ndim and value.dtype is not torch.bool:
            yield value, dim, x.shape[dim], True
        dim += x.ndim - sum(used) if entry is ... else n


def _rows(index_at: int, weight_at: int) -> Callable[..., Found]:
    """For an embedding."""

    def read(known: Known, args: Args, kwargs: Kwargs) -> Found:
        value = known.find(_argument(args, kwargs, index_at, "input"))
        weight = _argument(args, kwargs, weight_at, "weight")
        if value is not None and isinstance(weight, Tensor) and weight.ndim:
            yield value, -1, weight.shape[0], False

    return read


def _classes(ignore_at: int) -> Callable[..., Found]:
    """For ``nll_loss(x, target, ..., ignore_index)``."""

    def read(known: Known, args: Args, kwargs: Kwargs) -> Found:
        value = known.find(_argument(args, kwargs, 1, "target"))
        ignored = _argument(args, kwargs, ignore_at, "ignore_index")
        if value is not None and args and args[0].ndim:
            value = value[value != (-100 if ignored is None else ignored)]
            yield value, min(args[0].ndim, 2) - 1, args[0].shape[min(args[0].ndim, 2) - 1], False

    return read


def _one_hot(known: Known, args: Args, kwargs: Kwargs) -> Found:
    value, n = known.find(args[0]), _argument(args, kwargs, 1, "num_classes")
    if value is not None and type(n) is int and n > 0:
        yield value, -1, n, False


def _named(names: str) -> Iterator[object]:
    for name in names.split():
        for place in (torch, Tensor):
            for full in (name, f"{name}_"):
                if hasattr(place, full):
                    yield getattr(place, full)


_READS: dict[object, Callable[..., Found]] = {
    **dict.fromkeys(
        _named("gather index_select index_add index_copy index_reduce scatter scatter_add "
               "scatter_reduce"),
        _along(1, 2),
    ),
    **dict.fromkeys(_named("index_fill"), _along(1, 2, counts_from_end=lambda: True)),
    **dict.fromkeys(
        _named("take_along_dim"), _along(2, 1, "indices", take_along_dim_counts_from_end)
    ),
    **dict.fromkeys(_named("take put"), _flat),
    **dict.fromkeys(_named("index_put"), _entries),
    Tensor.__getitem__: _entries,
    Tensor.__setitem__: _entries,
    F.embedding: _rows(0, 1),
    torch.embedding: _rows(1, 0),
    F.embedding_bag: _rows(0, 1),
    F.nll_loss: _classes(4),
    F.cross_entropy: _classes(4),
    F.one_hot: _one_hot,
}  # fmt: skip
