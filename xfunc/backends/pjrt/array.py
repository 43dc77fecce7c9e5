"""`Array`: a tensor whose data a ``jax.Array`` holds.

A program takes and returns ``jax.Array``s. To the user each is an `Array`: a CPU tensor, by its
shape, dtype and device. Nothing is copied until torch computes with it: then torch reads a separate
copy. As soon as torch may write to that copy (in place, through a view of it, through NumPy), the
tensor holds the copy.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy.typing as npt
import torch
from torch.utils import _pytree as pytree

from xfunc.backends.pjrt import client

if TYPE_CHECKING:
    import jax


P = ParamSpec("P")
R = TypeVar("R")
_CPU = torch.device("cpu")


class Data:
    """The data of one or several `Array`s: a ``jax.Array``, or a tensor that torch may write to."""

    __slots__ = ("_array", "_copy", "_sharding")

    def __init__(self, array: jax.Array):
        self._array: jax.Array | None = array
        self._copy: torch.Tensor | None = None
        self._sharding: jax.sharding.Sharding | None = None  # of what torch has written to

    def array(self) -> jax.Array:
        """The data as a ``jax.Array``."""
        if self._array is None:
            assert self._copy is not None
            return client.put(self._copy, self.sharding)
        return self._array

    def read(self) -> torch.Tensor:
        """The data as a plain tensor, which nothing writes to."""
        if self._copy is None:
            self._copy = client.get(self.array())
        return self._copy

    def written(self) -> torch.Tensor:
        """The data as a plain tensor, which takes its place from now on."""
        found = self.read()
        if self._array is not None:
            self._sharding, self._array = self._array.sharding, None
        return found

    @property
    def is_elsewhere(self) -> bool:
        """Whether other processes hold parts of it, without which it cannot be read."""
        known = self.sharding
        return not (known.is_fully_addressable or known.is_fully_replicated)

    @property
    def sharding(self) -> jax.sharding.Sharding:
        """The placement of the data on the devices, now or later."""
        if self._array is not None:
            return self._array.sharding
        assert self._sharding is not None
        return self._sharding


def _unless_traced(method: Callable[P, R]) -> Callable[P, R]:
    """A method of `Array`; traced values use torch's own, which inform the trace."""
    of_torch = getattr(torch.Tensor, method.__name__)

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        traced = torch._C._is_torch_function_mode_enabled()
        return (of_torch if traced else method)(*args, **kwargs)

    return call


class Array(torch.Tensor):
    """A tensor that a program made, or that was given to one; see the module."""

    is_pjrt = True
    _data: Data

    # Otherwise each access to a shape would take a microsecond. Modes still see all calls.
    __torch_function__: Any = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: object, args: Any = (), kwargs: Any = None
    ) -> object:
        if func in _SAME:
            return args[0]._another()
        held: dict[int, Array] = {}

        def plain(x: object) -> object:
            if type(x) is not Array:
                return x
            held[id(copy := x._data.read())] = x
            return copy

        args, kwargs = pytree.tree_map(plain, (tuple(args), kwargs or {}))
        found = func(*args, **kwargs)
        storages = {x._data.read().untyped_storage().data_ptr(): x for x in held.values()}
        given = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
        writes = {a.name for a in func._schema.arguments if a.is_write}
        for x in pytree.tree_leaves([given[name] for name in writes & given.keys()]):
            if id(x) in held:
                held[id(x)]._data.written()
        for x in pytree.tree_leaves(found):
            if isinstance(x, torch.Tensor) and id(x) not in held:
                shared = storages.get(x.untyped_storage().data_ptr())
                if shared is not None:
                    shared._data.written()
        return pytree.tree_map(lambda x: held.get(id(x), x), found)

    # What reads memory, which is the copy's.

    @_unless_traced
    def cpu(self, *args: object, **kwargs: object) -> torch.Tensor:
        return self.clone()

    @_unless_traced
    def tolist(self) -> list[Any]:
        return self._data.read().tolist()

    @_unless_traced
    def numpy(self, *, force: bool = False) -> npt.NDArray[Any]:
        if self.requires_grad and not force:
            return torch.empty(0, requires_grad=True).numpy()  # Raises: it requires a gradient.
        return self._data.written().numpy()

    @_unless_traced
    def __array__(self, *args: Any, **kwargs: Any) -> npt.NDArray[Any]:
        return self.numpy().__array__(*args, **kwargs)

    @_unless_traced
    def __dlpack__(self, **kwargs: Any) -> object:
        return self._data.written().requires_grad_(self.requires_grad).__dlpack__(**kwargs)

    @_unless_traced
    def data_ptr(self) -> int:
        return self._data.written().data_ptr()

    @_unless_traced
    def untyped_storage(self) -> torch.UntypedStorage:
        return self._data.written().untyped_storage()

    @_unless_traced
    def __reduce_ex__(self, protocol: object) -> object:
        return self._plain().__reduce_ex__(protocol)

    @_unless_traced
    def __deepcopy__(self, memo: object) -> torch.Tensor:
        return self._plain().__deepcopy__(memo)

    @_unless_traced
    def __repr__(self, **kwargs: object) -> str:
        if self._data.is_elsewhere:
            return f"tensor(<parts in several processes>, size={tuple(self.shape)})"
        return repr(self._data.read() if self.grad_fn is None else self.clone())

    @property
    def data(self) -> torch.Tensor:
        self._data.written()
        return self._another()

    @data.setter
    def data(self, new: torch.Tensor) -> None:
        self.detach().copy_(new)

    def _another(self) -> Array:
        """A tensor of the same data."""
        return make(self._data, self.shape, self.dtype)

    def _plain(self) -> torch.Tensor:
        """The tensor as torch makes it: a leaf that requires a gradient, if it does."""
        return self._data.read().clone().requires_grad_(self.requires_grad)


def make(data: Data, shape: Sequence[int], dtype: torch.dtype) -> Array:
    """A tensor of this data, which is of this shape and dtype."""
    found = torch.Tensor._make_wrapper_subclass(Array, shape, dtype=dtype, device=_CPU)
    found._data = data
    return found


def array_of(tensor: Array) -> jax.Array:
    """The data of a tensor, as a ``jax.Array``."""
    return tensor._data.array()


def sharding_of(tensor: Array) -> Any:
    """The placement of its data on the devices, as JAX's sharding."""
    return tensor._data.sharding


_SAME = frozenset({torch.ops.aten.detach.default, torch.ops.aten.alias.default})
