"""`Array`: a tensor with its data in a ``jax.Array``.

A program takes and returns ``jax.Array``s. To the user each is an `Array`: a CPU tensor, by its
shape, dtype and device. Nothing is copied until torch computes with it: then torch reads a separate
copy. As soon as torch may write to that copy (in place, through a view of it, through NumPy), the
tensor holds the copy.

NOTE [untouched]: most results only pass from one program to the next. So an `Array` has just the
``jax.Array`` until somebody looks at it. Then it is no longer untouched: it has `Data`, which
aliases may share. If a program has taken its buffer over, it has neither.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy.typing as npt
import torch
from torch.utils import _pytree as pytree
from torch.utils._mode_utils import no_dispatch

from xfunc.backends.donated import fail_donated
from xfunc.backends.pjrt import client, gpu_arrays
from xfunc.backends.pjrt.shardings import sharding
from xfunc.core import ambient
from xfunc.core.avals import AvalKey
from xfunc.core.torch_versions import refusing_reads
from xfunc.errors import fail
from xfunc.torchlib.eager import is_eager
from xfunc.torchlib.functorch import never_compile
from xfunc.torchlib.global_flags import lazy_conjugates

if TYPE_CHECKING:
    import jax


P = ParamSpec("P")
R = TypeVar("R")
_CPU, _STRIDED = torch.device("cpu"), torch.strided
_new: Callable[..., Any] = torch.Tensor._make_wrapper_subclass
_ELSEWHERE = (
    "the backend 'pjrt' holds the data of this tensor, and this operation of torch reads memory "
    "without asking for it\nHint: give it a tensor of torch's own, x.cpu()."
)
_DATA: Any = torch.Tensor.data
_GRAD: Any = torch.Tensor.grad
_REQUIRES_GRAD: Any = torch.Tensor.requires_grad


class Data:
    """The data of one or several `Array`s: a ``jax.Array``, or a tensor that torch may write to."""

    __slots__ = ("_array", "_copy", "_sharding")

    def __init__(self, array: jax.Array | None):
        self._array = array
        self._copy: torch.Tensor | None = None
        self._sharding: jax.sharding.Sharding | None = None  # of tensors that torch has written to

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Data:
        """The memory of a tensor of torch's."""
        result = cls(None)
        result._copy, result._sharding = tensor, sharding(None)
        return result

    def array(self) -> jax.Array:
        """The data as a ``jax.Array``."""
        if self._array is None:
            assert self._copy is not None
            return client.put(self._copy, self.sharding)
        if self._array.is_deleted():
            fail(
                RuntimeError,
                "this tensor shares its memory with one that was donated to a jitted function, "
                "which has reused it",
                "clone the tensor before the call, or leave the argument out of donate_argnums.",
            )
        return self._array

    def read(self) -> torch.Tensor:
        """The data as a plain tensor, which nothing writes to."""
        if self._copy is None:
            self._copy = client.get(self.array())
        return self._copy

    def on_gpu(self, device: torch.device | None) -> torch.Tensor | None:
        """The data in a new tensor on this device, if it is a GPU and they are there already."""
        if device is None or device.type != "cuda" or self._array is None:
            return None
        return gpu_arrays.get(self.array(), device)

    def written(self) -> torch.Tensor:
        """The data as a plain tensor, which takes its place from now on."""
        result = self.read()
        if self._array is not None:
            self._sharding, self._array = self._array.sharding, None
        return result

    def alias(self) -> Data:
        """The same memory, which torch may write to, as another tensor."""
        result = Data(None)
        result._copy, result._sharding = self.written().detach(), self._sharding
        return result

    def replicate(self) -> None:
        """Forget the placement of a tensor that torch has written to: it has another shape now."""
        self._sharding = sharding(None)

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
        # Without a trace, the mode is the user's (`torch.set_default_device` enters one, too) or
        # that of `disable_jit`.
        moded = ambient.is_busy() and torch._C._is_torch_function_mode_enabled()
        traced = moded and not is_eager()
        return (of_torch if traced else method)(*args, **kwargs)

    return call


def _read(name: str) -> Callable[[Array], Any]:
    """The method of a tensor that reads its only element, in a third of torch's time."""
    method = getattr(torch.Tensor, name)

    @functools.wraps(method)
    def call(self: Array) -> Any:
        return method(self if self.requires_grad else self._data.read())

    return _unless_traced(call)


class Array(torch.Tensor):
    """A tensor that a program made, or that was given to one; see the module."""

    __slots__ = ("_jax_array", "_jax_aval", "_looked_at")
    is_pjrt = True
    _jax_array: jax.Array  # while it is untouched: see NOTE [untouched]
    _jax_aval: AvalKey
    _looked_at: Data

    # Otherwise each access to a shape would take a microsecond. Modes still see all calls.
    __torch_function__: Any = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: object, args: Any = (), kwargs: Any = None
    ) -> object:
        if func in _SAME:
            return args[0]._another()
        if func is _TO and kwargs:
            found = args[0]._data.on_gpu(kwargs.get("device"))
            if found is not None:
                layout = kwargs.get("memory_format", torch.preserve_format)
                return found.to(kwargs.get("dtype", found.dtype), memory_format=layout)
        held: dict[int, Array] = {}

        def plain(x: Any) -> Any:
            kind = type(x)
            if kind is Array:
                held[id(copy := x._data.read())] = x
                return copy
            return kind(map(plain, x)) if kind in (tuple, list) else x

        names, writes, changes_view = _signatures.get(func) or _signature(func)
        if changes_view and type(args[0]) is Array:
            args[0]._looked_at = args[0]._data.alias()  # Its aliases keep their shape.
        args, kwargs = plain(tuple(args)), {n: plain(x) for n, x in (kwargs or {}).items()}
        lazy = any(x.is_complex() for x in held.values())
        with lazy_conjugates() if lazy else contextlib.nullcontext():
            found = func(*args, **kwargs)
        if writes:
            given = dict(zip(names, args, strict=False)) | kwargs
            for x in pytree.tree_leaves([given[name] for name in writes & given.keys()]):
                if id(x) in held:
                    held[id(x)]._data.written()
                    held[id(x)]._follow(x)
        memories = {_memory(x._data.read()): x for x in held.values()}

        def noted(x: Any) -> Any:
            if not isinstance(x, torch.Tensor):
                return type(x)(map(noted, x)) if type(x) in (tuple, list) else x
            if id(x) in held:
                return held[id(x)]
            memory = _memory(x)
            for known, y in memories.items():
                if memory in (None, known):
                    y._data.written()
            return x

        return noted(found)

    @property
    def _data(self) -> Data:
        """The data, as somebody looks at it; see NOTE [untouched]."""
        try:
            return self._looked_at
        except AttributeError:
            if self._is_donated:
                fail_donated()
            self._looked_at = Data(self._jax_array)
            del self._jax_array
        return self._looked_at

    @property
    def _is_donated(self) -> bool:
        return not (hasattr(self, "_jax_array") or hasattr(self, "_looked_at"))

    def mark_donated(self) -> None:
        """Make the tensor unusable: a program has taken its buffer over."""
        for name in ("_jax_array", "_looked_at"):
            with contextlib.suppress(AttributeError):
                delattr(self, name)

    # Functions that read memory, which is the copy's.

    @_unless_traced
    def cpu(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        if args or kwargs or self.requires_grad:
            return self.clone().cpu(*args, **kwargs)
        return self._data.read().clone()  # in a third of the time

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
    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        if not self.is_leaf:
            return self.clone().__deepcopy__(memo)  # Raises: only leaves can be copied.
        if id(self) not in memo:
            found = memo[id(self)] = self._plain()
            found.grad = copy.deepcopy(self.grad, memo)
            vars(found).update(copy.deepcopy(vars(self), memo))
        return memo[id(self)]

    @_unless_traced
    def __format__(self, spec: str) -> str:
        return object.__format__(self, spec) if self.dim() else format(self.item(), spec)

    @_unless_traced
    def __repr__(self, **kwargs: object) -> str:
        if self._is_donated:
            return "<donated tensor>"
        if self._data.is_elsewhere:
            return f"tensor(<parts in several processes>, size={tuple(self.shape)})"
        return repr(self._plain() if self.grad_fn is None else self.clone())

    # Functions that change the tensor and not its data; see NOTE [untouched].

    @_unless_traced
    def requires_grad_(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, requires_grad: bool = True
    ) -> torch.Tensor:
        _ = self._data
        return torch.Tensor.requires_grad_(self, requires_grad)

    @property
    def requires_grad(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return _REQUIRES_GRAD.__get__(self)

    @requires_grad.setter
    def requires_grad(self, new: bool) -> None:
        self.requires_grad_(new)

    @property
    def grad(self) -> torch.Tensor | None:
        return _GRAD.__get__(self)

    @grad.setter
    def grad(self, new: torch.Tensor | None) -> None:
        _ = self._data
        _GRAD.__set__(self, new)

    @grad.deleter
    def grad(self) -> None:
        self.grad = None  # pyright: ignore[reportIncompatibleVariableOverride]

    @property
    def data(self) -> torch.Tensor:
        self._data.written()
        return self._another()

    @data.setter
    def data(self, new: torch.Tensor) -> None:
        if type(new) is Array:
            new._data.written()
            aval, data = new._jax_aval, new._data
        else:
            aval, data = (new.shape, new.dtype), Data.of(new.detach())
        _ = self._data  # It is no longer untouched.
        _DATA.__set__(self, _wrapper(aval))
        self._looked_at, self._jax_aval = data, aval
        self._follow(data.read())

    def _another(self) -> Array:
        """A tensor of the same data."""
        result = _wrapper(self._jax_aval)
        result._looked_at = self._data
        return result

    def _follow(self, copy: torch.Tensor) -> None:
        """Adopt the copy's shape, which an operation may have changed."""
        if (copy.shape, copy.stride()) != (self.shape, self.stride()):
            with no_dispatch():
                self.as_strided_(copy.shape, copy.stride(), 0)
            self._jax_aval = copy.shape, copy.dtype
            self._data.replicate()

    def _plain(self) -> torch.Tensor:
        """The tensor as torch makes it: a leaf that requires a gradient, if it does."""
        found = self._data.read().clone()
        if isinstance(self, torch.nn.Parameter):  # torch sets it on the result of `Parameter`.
            return torch.nn.Parameter(found, self.requires_grad)
        return found.requires_grad_(self.requires_grad)


for _name in ("item", "__bool__", "__int__", "__float__", "__complex__", "__index__"):
    setattr(Array, _name, _read(_name))


_signatures: dict[object, tuple[tuple[str, ...], frozenset[str], bool]] = {}


def _signature(func: Any) -> tuple[tuple[str, ...], frozenset[str], bool]:
    """The arguments of an operation, those that it writes to, and whether it changes a shape."""
    names = tuple(a.name for a in func._schema.arguments)
    # The schemas of collectives do not declare their writes.
    writes = (a.name for a in func._schema.arguments if a.is_write or func.namespace == "c10d")
    found = _signatures[func] = names, frozenset(writes), torch.Tag.inplace_view in func.tags
    return found


def _memory(tensor: torch.Tensor) -> int | None:
    """The address of a torch tensor's memory; None: its parts have it, as of a sparse one."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        return None
    return tensor.untyped_storage().data_ptr()


# torch.compile would look into how data is read: with dynamo's own tensors, which have none.
never_compile(Data.read)
never_compile(_signature)


def make(array: jax.Array, aval: AvalKey) -> Array:
    """A tensor of this data, which is of this shape and dtype."""
    result = _wrapper(aval)
    result._jax_array = array
    return result


_refuse_reads = refusing_reads(Array, _ELSEWHERE)


def _wrapper(aval: AvalKey) -> Array:
    # By position: with keywords it takes a fifth longer.
    result = _new(Array, aval[0], None, None, None, aval[1], _STRIDED, _CPU)
    _refuse_reads(result)
    result._jax_aval = aval
    return result


def makers(avals: Sequence[AvalKey]) -> list[Callable[[jax.Array], Array]]:
    """`make` for tensors of these shapes and dtypes, one by one, in less time."""
    return list(map(_maker, avals))


@functools.lru_cache(maxsize=4096)
def _maker(aval: AvalKey) -> Callable[[jax.Array], Array]:
    size, dtype = aval

    def make(array: jax.Array) -> Array:
        result = new(cls, size, None, None, None, dtype, strided, cpu)
        refuse_reads(result)
        result._jax_aval, result._jax_array = aval, array
        return result

    cls, new, strided, cpu = Array, _new, _STRIDED, _CPU
    refuse_reads = _refuse_reads
    return make


UNTOUCHED: Callable[[Any], jax.Array] = operator.attrgetter("_jax_array")
"""The data of an untouched tensor; raises AttributeError for any other."""

AVAL: Callable[[Any], AvalKey] = operator.attrgetter("_jax_aval")
"""The shape and dtype of a tensor; raises AttributeError for anything that is not an `Array`."""


def array_of(tensor: Array) -> jax.Array:
    """The data of a tensor, as a ``jax.Array``."""
    try:
        return tensor._jax_array
    except AttributeError:
        return tensor._data.array()


def sharding_of(tensor: Array) -> Any:
    """The placement of its data on the devices, as JAX's sharding."""
    try:
        return tensor._jax_array.sharding
    except AttributeError:
        return tensor._data.sharding


_TO = torch.ops.aten._to_copy.default
_SAME = frozenset({torch.ops.aten.detach.default, torch.ops.aten.alias.default})
