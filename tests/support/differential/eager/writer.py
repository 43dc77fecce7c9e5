"""A program under construction: its lines, and what they compute for example inputs.

Each line is run by eager torch as soon as it is written, with `meaning` for xfunc. So nothing here
knows shapes, dtypes or aliases: what torch refuses is not written, and what a line gives says what
the next one may do with it.
"""

from __future__ import annotations

import contextlib
import math
import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from tests.support.differential.draft import Draft

from . import meaning

Tensor = torch.Tensor
LARGEST = 48  # entries of one tensor

KINDS: dict[str, Callable[[torch.dtype], bool]] = {
    "any": lambda d: True,
    "float": lambda d: d.is_floating_point,
    "complex": lambda d: d.is_complex,
    "inexact": lambda d: d.is_complex or d.is_floating_point,
    "int": lambda d: not (d.is_complex or d.is_floating_point or d == torch.bool),
    "bool": lambda d: d == torch.bool,
    "real": lambda d: not d.is_complex and d != torch.bool,
    "number": lambda d: d != torch.bool,
    "whole": lambda d: not (d.is_complex or d.is_floating_point),
}
DTYPES = (
    torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex64, torch.int64,
    torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
)  # fmt: skip


class DoesNotFit(Exception):
    """Nothing in scope suits what was to be written, or torch refuses it."""


class Writer(Draft[str]):
    """Writes a program, from the random numbers of a seed.

    Attributes:
        values: every variable's value for the example, and the modules that the text names.
    """

    def __init__(self, seed: str):
        super().__init__(seed)
        self.values: dict[str, Any] = {"torch": torch, "xf": meaning, "F": torch.nn.functional}
        self._foreign: set[int] = set()  # memory that this function may not write to

    # -- choices --------------------------------------------------------------------------------

    def choose(self, options: Sequence[Any]) -> Any:
        if not options:
            raise DoesNotFit
        return self.random.choice(options)

    def dtype(self, kind: str = "any") -> torch.dtype:
        return self.choose([d for d in DTYPES if KINDS[kind](d)])

    def pick(self, kind: str = "any", suits: Callable[[Tensor], bool] = lambda t: True) -> str:
        """A variable, more likely a recent one."""
        found = [
            v for v in self.scope if KINDS[kind](self.values[v].dtype) and suits(self.values[v])
        ]
        if self.chance(0.6):
            found = found[-4:]
        return self.choose(found)

    def some(self, kind: str = "any", suits: Callable[[Tensor], bool] = lambda t: True) -> str:
        """A variable; a new one, if none suits."""
        try:
            return self.pick(kind, suits)
        except DoesNotFit:
            dtype = self.dtype(kind)
            shapes = [s for s in SHAPES if suits(torch.zeros(s, dtype=dtype))]
            return self.let(self.literal(dtype, self.choose(shapes)))

    def owned(self, kind: str = "any") -> str:
        """A variable whose memory is this function's own, so that it may be changed."""
        return self.pick(kind, lambda t: self.may_write(t))

    def may_write(self, t: Tensor) -> bool:
        return t.numel() > 0 and t.untyped_storage().data_ptr() not in self._foreign

    # -- lines ----------------------------------------------------------------------------------

    def run(self, text: str) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                exec(textwrap.dedent(text), self.values)  # the text is our own
            except Exception as error:
                raise DoesNotFit(str(error)) from error

    def do(self, text: str) -> None:
        """A statement."""
        self.run(text)
        self.line(text)

    def let(self, text: str, tame: bool = True) -> str:
        """Assign to a new variable."""
        name = self.name("v")
        self.run(f"{name} = {text}")
        value = self.values[name]
        if tame:
            self._check(value)
        self.line(f"{name} = {text}")
        self.scope.append(name)
        return name

    def _check(self, value: Any) -> None:
        if not isinstance(value, Tensor) or value.dtype not in DTYPES:
            raise DoesNotFit
        if value.numel() > LARGEST or value.ndim > 4:
            raise DoesNotFit
        if KINDS["inexact"](value.dtype) and value.numel():
            finite = value[value.isfinite()]
            if finite.numel() == 0 and self.chance(0.7):
                raise DoesNotFit
            if finite.numel() and finite.abs().max().item() > 1e3 and self.chance(0.9):
                raise DoesNotFit

    @contextlib.contextmanager
    def block(self) -> Iterator[None]:
        """Some lines that define functions and apply them: all of them, or none."""
        before = len(self.lines), len(self.scope)
        try:
            yield
        except DoesNotFit:
            del self.lines[before[0] :], self.scope[before[1] :]
            raise

    def finish_block(self, start: int, call: str, results: str) -> Any:
        """Add a call to the lines since `start`, run them, and give what they give."""
        self.line(f"{results} = {call}")
        self.run("\n".join(self.lines[start:]))
        return self.values[results]

    @contextlib.contextmanager
    def function(
        self,
        arguments: Sequence[tuple[str, Tensor]],
        parameters: Sequence[str] = (),
        *,
        closed: bool = False,
        reverse: bool = False,
        forward: bool = False,
        decorator: str = "",
    ) -> Iterator[str]:
        """Write the body of a nested function in a scope of its own; gives its name.

        Args:
            arguments: names of its tensors, with examples.
            parameters: as written, if they are not these names.
            closed: whether it may use nothing but its arguments.
            reverse, forward: how it is differentiated.
            decorator: of the function.
        """
        names, foreign = [a for a, _ in arguments], self._foreign
        body = self.body(
            parameters or names,
            names,
            closed=closed,
            reverse=reverse,
            forward=forward,
            decorator=decorator,
        )
        with body as name:
            self.values.update({a: t.clone() for a, t in arguments})
            held = {self.values[v].untyped_storage().data_ptr() for v in self.scope}
            self._foreign = foreign | held
            try:
                yield name
            finally:
                self._foreign = foreign

    # -- literals -------------------------------------------------------------------------------

    def literal(self, dtype: torch.dtype, shape: Sequence[int]) -> str:
        """The text of a tensor whose entries differ."""
        n = math.prod(shape)
        line = f"torch.arange({n})" + ("" if len(shape) == 1 else f".reshape({tuple(shape)})")
        if dtype == torch.bool:
            return f"{line} % {self.count(2, 3)} == 0"
        if KINDS["int"](dtype):
            return f"({line} * {self.count(1, 5)} % 7 - {self.count(0, 2)}).to({dtype})"
        return f"({line} * {self.choose((0.25, 0.375, -0.5))} - 0.5).to({dtype})"

    def like(self, kind: str, suits: Callable[[Tensor], bool], shape: Sequence[int]) -> str:
        """The text of a variable that suits, or else a literal of a shape."""
        with contextlib.suppress(DoesNotFit):
            return self.pick(kind, suits)
        return f"({self.literal(self.dtype(kind), shape)})"


SHAPES: tuple[tuple[int, ...], ...] = (
    (3,), (), (2, 3), (4,), (2,), (3, 3), (2, 2, 3), (3, 2), (4, 3), (2, 2), (1, 3), (3, 1), (1,),
    (2, 1, 3), (6,),
)  # fmt: skip
