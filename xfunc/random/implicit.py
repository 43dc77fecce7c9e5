"""`implicit`: makes code written for torch's global generator draw from a key.

NOTE [the context belongs to its trace]: a loop body, a nested jit or a branch is traced once and
runs many times. If it drew from a key of the enclosing trace, it would draw the same numbers each
time; so it may not, and must open its own context.

NOTE [functions of torch written in Python]: ``F.dropout`` and the like check their arguments and
call the operation that draws. An override sees only the outer function, so they are run here
without the override check, and the calls they make are intercepted in turn.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping

from torch.overrides import TorchFunctionMode

from xfunc.errors import fail
from xfunc.random.checks import Tensor, as_key
from xfunc.random.replacements import REPLACEMENTS
from xfunc.random.threefry import fold_in
from xfunc.torchlib import torch_functions
from xfunc.torchlib.initialisers import INITIALISERS
from xfunc.trace import tracing


class implicit:
    """A context in which torch's random functions draw from a key.

    ::

        @xf.jit
        def loss(params, x, key):
            with xf.random.implicit(key):
                return apply(params, x).sum()       # dropout inside

    Draw number i uses ``fold_in(key, i)``: the same key gives the same numbers, and each draw in
    the context gives different ones. Under `vmap` all examples draw the same numbers, unless the
    key is batched. Outside a traced function, the context applies to torch's own tensors.

    Covered are dropout of all kinds, ``rand``, ``randn``, ``randint``, ``randperm`` and their
    ``_like`` forms, ``normal``, ``bernoulli``, ``multinomial``, ``poisson``, ``binomial``,
    ``rrelu``, ``gumbel_softmax``, fractional pooling, attention with dropout, dropout between
    recurrent layers, the samples of ``torch.distributions`` (but for VonMises and Wishart), and the
    methods ``bernoulli_``, ``uniform_``, ``normal_``, ``exponential_``, ``random_``,
    ``geometric_``, ``cauchy_`` and ``log_normal_``. The distributions are torch's; the numbers are
    not.

    Args:
        key: int32[2].

    Raises:
        PurityError: at a draw by a function that is not covered, with a `generator`, or inside a
            function whose trace began after the context was opened (the body of a `scan`, a
            nested `jit`): open the context in that function, with a key that is passed in.
    """

    def __init__(self, key: Tensor):
        self._given = as_key(key, "implicit")
        self._key: Tensor | None = None
        self.trace: tracing.Trace | None = None

    def __enter__(self) -> None:
        if self._key is not None:
            fail(RuntimeError, "this implicit context is already open", "make another.")
        self.trace = tracing.current()
        self._key = self._given if self.trace is None else self.trace.lift(self._given)
        self._draws = 0
        self._before = tracing.set_implicit(self)
        self._mode = None
        if self.trace is None:
            self._mode = _Outside(self)
            self._mode.__enter__()
            tracing.drawing.__enter__()

    def __exit__(self, *error: object) -> None:
        if self._mode is not None:
            self._mode.__exit__(*error)
            tracing.drawing.__exit__()
        tracing.set_implicit(self._before)
        self._key = self._mode = self.trace = self._before = None

    def next_key(self) -> Tensor:
        """The key of the next draw."""
        assert self._key is not None
        self._draws += 1
        return fold_in(self._key, self._draws - 1)

    def draw(
        self, func: Callable[..., object], args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> object:
        """The result of a random function; NotImplemented if it is not covered."""
        if isinstance(func, types.FunctionType) and "has_torch_function" in func.__globals__:
            return _body_of(func)(*args, **kwargs)
        replacement = REPLACEMENTS.get(func.__name__)
        if replacement is None or kwargs.get("out") is not None:
            return NotImplemented
        return replacement(self.next_key, *args, **kwargs)


def _body_of(func: types.FunctionType) -> types.FunctionType:
    """See NOTE [functions of torch written in Python]."""
    names = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    known = {**func.__globals__, **{n: lambda *_: False for n in names}}
    body = types.FunctionType(func.__code__, known, func.__name__, func.__defaults__)
    body.__kwdefaults__ = func.__kwdefaults__
    return body


class _Outside(TorchFunctionMode):
    """Routes draws in untraced code to a context."""

    def __init__(self, context: implicit):
        self._context = context

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        if (body := INITIALISERS.get(func)) is not None and tracing.current() is None:
            with _Outside(self._context):
                return body(*args, **kwargs)
        draws = (
            torch_functions.kind_of(func) is torch_functions.Kind.RANDOM
            and tracing.current() is None
        )
        if (
            not draws
            or not torch_functions.is_random_call(func, args, kwargs)
            or kwargs.get("generator")
        ):
            return func(*args, **kwargs)
        with _Outside(self._context):
            result = self._context.draw(func, args, kwargs)
        if result is NotImplemented:
            result = func(*args, **kwargs)
        return result
