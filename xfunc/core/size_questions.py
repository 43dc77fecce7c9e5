"""The questions that traced code asks about sizes.

NOTE [questions about sizes]: a trace at one size takes one branch of ``if x.shape[0] % 3 == 0``.
Where a trace is to stand for other sizes (`ambient.asks_sizes`), the sizes that the user's code
reads are numbers that remember how they were computed, and each comparison of them is left with the
program as a `Question`. At sizes where all answers are the same, the code takes the same path.
``len(x)``, ``int(n)`` and ``math.sqrt(n)`` return numbers that remember nothing: that they were
read is left with the program as a question without an answer. Python gives an index into a list,
``str(n)`` and some functions of `math` (``log``, ``isqrt``, ``gcd``) without a way to notice it.
"""

from __future__ import annotations

import math
import operator
import sys
import types
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias, cast

import torch

from xfunc.core.guards import Guard, depend_on
from xfunc.core.locations import in_user_file

Number: TypeAlias = "int | float"
Formula: TypeAlias = "Number | tuple[Any, ...]"
"""A number, or a function and the formulas of its arguments."""

READS = frozenset([len, int, float])
"""What gives a number that does not remember how it was computed."""

# The files of torch's Python below `len`.
_OF_LEN = frozenset(
    f.__code__.co_filename for f in (torch.Tensor.__len__, torch.overrides.handle_torch_function)
)
_MAX_DEPTH = 16  # of a formula; a number computed in more steps stands for itself


class Question(NamedTuple):
    """A comparison or a `READS`, and where it was made. As a guard, it always holds.

    Attributes:
        file: of the user's code.
        line: in the file.
        form: the comparison, with `None` in place of each number.
        numbers: those numbers.
    """

    file: str
    line: int
    form: Hashable
    numbers: tuple[Number, ...]

    def __call__(self) -> None:
        return None


class Questions(tuple[Question, ...]):
    """The questions asked in a trace, as one guard."""

    __slots__ = ()

    def __call__(self) -> None:
        return None


NONE = Questions()


def taken_from(guards: Iterable[Guard]) -> tuple[Questions, list[Guard]]:
    """The questions among the guards of a trace, and the guards with those as one."""
    found: dict[Question, None] = {}
    others: list[Guard] = []
    for guard in guards:
        if isinstance(guard, Question):
            found[guard] = None
        elif isinstance(guard, Questions):
            found.update(dict.fromkeys(guard))
        else:
            others.append(guard)
    questions = Questions(found)
    return questions, [*others, questions] if questions else others


def tracked(found: Any, frame: types.FrameType) -> Any:
    """Sizes or strides that code of the user's reads: as numbers that remember."""
    if not in_user_file(frame.f_code.co_filename):
        return found
    if isinstance(found, torch.Size):
        return torch.Size(map(TrackedInt, found))
    if isinstance(found, tuple):  # the strides
        return tuple(map(TrackedInt, cast("tuple[int, ...]", found)))
    return TrackedInt(found)


def note_length(length: Any, frame: types.FrameType) -> None:
    """Leave with the program that code of the user's reads the length of a tensor."""
    while frame.f_back is not None and frame.f_code.co_filename in _OF_LEN:
        frame = frame.f_back
    if in_user_file(frame.f_code.co_filename):
        _ask(frame, len, (length,))


def note_values(values: Iterable[int], frame: types.FrameType) -> None:
    """Leave with the program that code reads numbers that are computed from sizes, if any are."""
    _ask(frame, int, tuple(values))


def plain(x: Any) -> Any:
    """A number as one that remembers nothing; anything else as it is."""
    return x.plain() if isinstance(x, _Tracked) else x


def apply(form: Any, numbers: Iterator[Any], table: Callable[[Any], Any]) -> Any:
    """The value of a form for numbers, or for arrays of them.

    Args:
        form: of a `Question`.
        numbers: in the places of `None`.
        table: the function to call in place of each.
    """
    if form is None:
        return next(numbers)
    return table(form[0])(*[apply(f, numbers, table) for f in form[1:]])


class _Tracked:
    """A number with its formula."""

    formula: Formula
    depth = 0

    def plain(self) -> Number:
        """The number alone."""
        raise NotImplementedError

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self.plain()), (self.plain(),)


class TrackedInt(_Tracked, int):
    """A whole number with its formula."""

    def plain(self) -> int:
        return int.__int__(self)


class TrackedFloat(_Tracked, float):
    """A quotient of sizes, with its formula."""

    def plain(self) -> float:
        return float.__float__(self)


TRACKED_NUMBERS = TrackedInt, TrackedFloat


def _formula(x: Number) -> Formula:
    return getattr(x, "formula", x) if isinstance(x, _Tracked) else x


def _computed(function: Callable[..., Any], *args: Number) -> Any:
    """The result of a function of numbers, with its formula."""
    value = function(*map(plain, args))
    if type(value) not in (int, float):
        return value
    result: Any = TrackedInt(value) if type(value) is int else TrackedFloat(value)
    depth = 1 + max(getattr(a, "depth", 0) for a in args)
    if depth <= _MAX_DEPTH:
        result.formula, result.depth = (function, *map(_formula, args)), depth
    else:
        result.formula = value
    return result


def _answered(function: Callable[..., Any], *args: Number) -> Any:
    """The outcome of a comparison, which is left with the program if the user's code makes it."""
    frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
    if in_user_file(frame.f_code.co_filename):
        _ask(frame, function, args)
    return function(*map(plain, args))


def _ask(frame: types.FrameType, function: Callable[..., Any], args: tuple[Number, ...]) -> None:
    numbers: list[Number] = []
    form = _form((function, *map(_formula, args)), numbers)
    depend_on(Question(frame.f_code.co_filename, frame.f_lineno, form, tuple(numbers)))


def _form(formula: Formula, numbers: list[Number]) -> Hashable:
    if isinstance(formula, tuple):
        return (formula[0], *[_form(f, numbers) for f in formula[1:]])
    numbers.append(plain(formula))
    return None


def _unary(function: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any) -> Any:
        return _computed(function, self)

    return method


def _binary(function: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def method(self: Any, other: Any) -> Any:
        return _computed(function, self, other) if isinstance(other, _NUMBERS) else NotImplemented

    def reflected(self: Any, other: Any) -> Any:
        return _computed(function, other, self) if isinstance(other, _NUMBERS) else NotImplemented

    return method, reflected


def _comparison(function: Callable[..., bool]) -> Callable[..., Any]:
    def method(self: Any, other: Any) -> Any:
        return _answered(function, self, other) if isinstance(other, _NUMBERS) else NotImplemented

    return method


def _is_nonzero(self: Any) -> bool:
    return _answered(operator.ne, self, 0)


def _is_integer(self: Any) -> bool:
    return _answered(_is_whole, self)


def _hash(self: Any) -> int:
    return _answered(hash, self)


def _as_int(self: Any) -> int:
    return _answered(int, self)


def _as_float(self: Any) -> float:
    return _answered(float, self)


def _round(self: Any, *digits: int) -> Any:
    return _computed(round, self, *digits)


def _divmod(self: Any, other: Any) -> Any:
    return (self // other, self % other) if isinstance(other, _NUMBERS) else NotImplemented


def _is_whole(x: Number) -> bool:
    return x == int(x)


_NUMBERS = int, float
_OF_BITS = "and_ or_ xor lshift rshift".split()

for _cls in (TrackedInt, TrackedFloat):
    for _name in "add sub mul floordiv mod truediv pow".split() + _OF_BITS * (_cls is TrackedInt):
        _method, _reflected = _binary(getattr(operator, _name))
        setattr(_cls, f"__{_name.strip('_')}__", _method)
        setattr(_cls, f"__r{_name.strip('_')}__", _reflected)
    for _name in "lt le gt ge eq ne".split():
        setattr(_cls, f"__{_name}__", _comparison(getattr(operator, _name)))
    for _name in ["neg", "pos", "abs"] + ["invert"] * (_cls is TrackedInt):
        setattr(_cls, f"__{_name}__", _unary(getattr(operator, _name)))
    for _name in "ceil floor trunc".split():
        setattr(_cls, f"__{_name}__", _unary(getattr(math, _name)))
    for _name, _method in {
        "__bool__": _is_nonzero,
        "__divmod__": _divmod,
        "__float__": _as_float,
        "__hash__": _hash,
        "__int__": _as_int,
        "__round__": _round,
        "is_integer": _is_integer,
    }.items():
        setattr(_cls, _name, _method)
for _name in ("bit_count", "bit_length"):
    setattr(TrackedInt, _name, _unary(getattr(int, _name)))
