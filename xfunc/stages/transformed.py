"""`Transform`, the base class of the results of `jit`, `grad`, `vmap` and the rest.

Called with real tensors, it stages itself and runs as one executable; called inside a trace, it
becomes part of that trace.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeAlias, TypeVar, overload

import torch

from xfunc import tree
from xfunc.core.locations import function_name, place_of
from xfunc.core.wrappers import Wrapper
from xfunc.errors import fail, short_repr
from xfunc.stages import fast_path
from xfunc.stages.staging import Staged, run_staged
from xfunc.stages.traceback_filter import hide_library_frames
from xfunc.torchlib.eager import is_eager
from xfunc.torchlib.functorch import never_compile
from xfunc.trace import tracing
from xfunc.tree import PyTree

P = ParamSpec("P")
R = TypeVar("R", covariant=True)
S = TypeVar("S")
_INTERNAL = frozenset("apply inside kind define run staged static_scalars without_compiler".split())
Q = ParamSpec("Q")
T = TypeVar("T")
F = TypeVar("F")

CallableOrLambda: TypeAlias = (
    Callable[P, F]
    | Callable[Concatenate[Any, ...], F]
    | Callable[Concatenate[Any, Any, ...], F]
    | Callable[Concatenate[Any, Any, Any, ...], F]
    | Callable[Concatenate[Any, Any, Any, Any, ...], F]
)
"""``Callable[P, F]``; a type checker takes the first four parameters of a lambda to be `Any`.

With ``Callable[P, F]`` alone, pyright reports the parameters and the result of a lambda as unknown.
It finds `Any` in the other members of the union. For a generic function it then finds `Any` in
place of its type variables.
"""


class Transform(Wrapper, Generic[P, R]):
    """A transformed function: see the transform that made it.

    `P` and `R` are its own parameters and result.
    """

    __wrapped__: Callable[..., object]
    _made_from: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        self = super().__new__(cls)
        self._made_from = args, kwargs
        return self

    def __init__(self, fun: Callable[..., object], options: Hashable, name: str):
        if not callable(fun):
            fail(
                TypeError,
                f"{name} was given {short_repr(fun)}, which is not callable",
                f"pass a function: {name}(f)(x) rather than {name}(f(x)).",
            )
        self.fun, self.options, self._kind_name = fun, options, name
        functools.update_wrapper(self, fun, updated=())
        self.__name__ = self.__qualname__ = f"{name}({function_name(fun)})"
        self._staged = Staged(self.apply, value=self, static_scalars=self.static_scalars)

    @property
    def staged(self) -> Staged:
        """The programs of `apply`."""
        return self._staged

    def static_scalars(self, structure: tree.Structure) -> Sequence[bool]:
        """For each flat argument, whether a Python number there is static (compared by value)."""
        return (False,) * structure.num_leaves

    def apply(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Trace into the enclosing trace (or run eagerly)."""
        raise NotImplementedError

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            result = fast_path.call(self._staged, args, kwargs)
            if result is not fast_path.MISSED:
                return result
            if tracing.current() is None and not is_eager():
                return self.run(args, kwargs)
        except Exception as error:
            raise hide_library_frames(error) from error.__cause__
        return self.inside(args, kwargs)

    def run(self, args: tuple[object, ...], kwargs: dict[str, object]) -> PyTree:
        """Find the program for these arguments, and run it."""
        return run_staged(self._staged, args, kwargs)

    def inside(self, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]) -> PyTree:
        """The result inside a trace, or of an eager call."""
        result = self.apply(*args, **kwargs)
        return result if tracing.current() is None else own(result)

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Pickle by name if it has one, like a function; otherwise as a copy without programs."""
        found: Any = sys.modules.get(self.__module__)
        for name in self.__qualname__.split("."):
            found = getattr(found, name, None)
        return self.__qualname__ if found is self else (_made_anew, self._parts())

    def _parts(self) -> tuple[Any, ...]:
        """The arguments of `_made_anew`."""
        return type(self), *self._made_from

    def __repr__(self) -> str:
        return f"<{self._kind_name} of {function_name(self.fun)}{place_of(self.fun)}>"

    def __dir__(self) -> list[str]:
        return [n for n in dir(type(self)) if n[0] != "_" and n not in _INTERNAL]

    def __copy__(self) -> Self:
        result = object.__new__(type(self))
        vars(result).update(vars(self))
        return result

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Transform[P, R]: ...
    @overload
    def __get__(
        self: Transform[Concatenate[S, Q], T], instance: S, owner: type | None = None
    ) -> Callable[Q, T]: ...
    def __get__(self, instance: object, owner: type | None = None) -> Callable[..., object]:
        return self if instance is None else types.MethodType(self, instance)


never_compile(vars(Transform)["__call__"])


def _made_anew(
    kind: Callable[..., T],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    state: Mapping[str, Any] | None = None,
) -> T:
    """Rebuild a transform from the arguments of `Transform.__reduce__`."""
    result = kind(*args, **kwargs)
    vars(result).update(state or {})
    return result


def own(result: T) -> T:
    """The results of a transform inside a trace: tensors that share no memory.

    An output may be an argument, and a gradient a view of one number, but changing it in place must
    not change anything else. A copy makes no HLO instruction.
    """
    leaves, structure = tree.flatten(result)
    tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
    trace = tracing.current()
    copies = iter(map(torch.clone, tensors) if trace is None else trace.copies(tensors))
    return tree.unflatten(
        structure, [next(copies) if isinstance(x, torch.Tensor) else x for x in leaves]
    )
