"""Run a program by plain torch and by xfunc, and say whether they agree.

NOTE [what rounding explains]: a result may differ by as much as rounding matters to it. That is
measured, where results differ at all: plain torch runs the program again in float64 and complex128
throughout, with inputs changed by a few rounding errors, and with both. What these give differs
from the first result by about what rounding can do; a result of xfunc may differ by a few times as
much. An integer or a truth value that rounding changes is not compared.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils import _pytree as tree

import xfunc as xf

from . import meaning
from .generate import Program
from .readings import Consistent, Rows, SumsOfParts, forward_mode, pairs

Tensor = torch.Tensor
ROUNDINGS = 64  # that any result may differ by; of a type of half precision, 4
NOISE = 16  # times the effect of rounding, likewise
EPS = {
    torch.float64: 2.0**-52, torch.float32: 2.0**-23, torch.bfloat16: 2.0**-7,
    torch.float16: 2.0**-10, torch.complex64: 2.0**-23, torch.complex128: 2.0**-52,
}  # fmt: skip
HALF = (torch.bfloat16, torch.float16)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came of a program.

    Attributes:
        kind: "equal", "differs", "error" (one that torch does not have, without a name), "refused"
            (by an error of xfunc's), or "torch refuses".
        text: how it differs, or what the error says.
    """

    kind: str
    text: str = ""

    @property
    def cause(self) -> str:
        """What failures of one cause have in common, roughly."""
        first = self.text.partition("\n")[0]
        if self.kind == "differs":
            return f"differs: {first.split('[')[0]}"
        return f"{self.kind}: {re.sub('[0-9]+|0x[0-9a-f]+', 'N', first)}"


def outcome(program: Program | str) -> Outcome:
    """Run and compare."""
    source = program.source if isinstance(program, Program) else program
    try:
        want = _plain(source)
    except Exception as error:
        return Outcome("torch refuses", _said(error))
    try:
        got = _run(source, xf)
        got = xf.device_get(got)
    except xf.errors.XfuncError as error:
        return Outcome("refused", _said(error))
    except Exception as error:
        return Outcome("error", _said(error))
    differences = _differences(source, got, want)
    if differences:
        with SumsOfParts(), Rows(), Consistent(), pairs():
            want = _plain(source)
            differences = _differences(source, got, want)
            if differences:
                with forward_mode():
                    want = tree.tree_map(_beside_infinities, want, _plain(source))
                differences = _differences(source, got, want)
    return Outcome("differs", "\n".join(differences)) if differences else Outcome("equal")


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _run(source: str, words: Any) -> Any:
    namespace = {"torch": torch, "F": torch.nn.functional, "xf": words}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(source, "<program>", "exec"), namespace)  # the text is our own
    return namespace["out"]


def _plain(source: str) -> Any:
    return tree.tree_map_only(Tensor, torch.Tensor.detach, _run(source, meaning))


def _beside_infinities(x: Any, y: Any) -> Any:
    """`x`, with what `y` has where one of them is not finite, or may be made of what is not."""
    if not isinstance(x, Tensor) or x.shape != y.shape or x.dtype != y.dtype:
        return x
    if x.dtype not in EPS:
        return y
    return torch.where(x.isfinite() & y.isfinite(), x, y)


# -- comparing --------------------------------------------------------------------------------


def _differences(source: str, got: Any, want: Any) -> list[str]:
    """One line for each result that is not as torch has it."""
    gots, form = tree.tree_flatten(got)
    wants, wanted = tree.tree_flatten(want)
    if form != wanted:
        return [f"structure: {form} instead of {wanted}"]
    lines = []
    others: list[list[Tensor]] | None = None
    for i, (x, y) in enumerate(zip(gots, wants, strict=True)):
        if not isinstance(x, Tensor) or not isinstance(y, Tensor):
            lines += [] if x is y else [f"structure: {x} instead of {y}"]
            continue
        if x.dtype != y.dtype or x.shape != y.shape:
            lines.append(
                f"dtype or shape: {x.dtype} for {y.dtype}: {_type(x)}, {_type(y)} (out[{i}])"
            )
            continue
        if _close(x, y, []):
            continue
        if others is None:
            others = list(_reruns(source))
        if not _close(x, y, [o[i] for o in others if o[i].shape == y.shape]):
            lines.append(f"value: {_type(x)} {_shown(x)} instead of {_shown(y)} (out[{i}])")
    return lines


def _close(x: Tensor, y: Tensor, others: list[Tensor]) -> bool:
    """Whether `x` is `y` but for rounding: see NOTE [what rounding explains]."""
    if y.dtype not in EPS:
        if any(o.dtype != y.dtype or not torch.equal(o, y) for o in others):
            return True
        return torch.equal(x, y)
    if y.is_complex():
        others = [torch.view_as_real(o.resolve_conj()) for o in others if o.is_complex()]
        x, y = torch.view_as_real(x.resolve_conj()), torch.view_as_real(y.resolve_conj())
        return _close(x, y, others)
    eps = EPS[y.dtype] * (4 if y.dtype in HALF else ROUNDINGS)
    x, y, others = x.double(), y.double(), [o.double() for o in others]
    finite = y.isfinite()
    same = torch.where(y.isnan(), x.isnan(), x == y) & ~finite
    for o in others:  # Where rounding decides whether a value is finite, all are right.
        same |= finite != o.isfinite()
    bound = eps * max(1.0, _most(y[finite]))
    for o in others:
        bound += NOISE * _most((o - y)[finite & o.isfinite()])
    return bool((same | (finite & ((x - y).abs() <= bound))).all())


def _most(t: Tensor) -> float:
    return t.abs().max().item() if t.numel() else 0.0


def _reruns(source: str) -> Iterator[list[Tensor]]:
    """The results of plain torch with other rounding."""
    wide = [_wider(source), _wider(_moved(source, 1))]
    moved = [_moved(source, n) for n in (1, -1, 2, 3)]
    for text, dtype in [*((t, torch.float64) for t in wide), *((t, torch.float32) for t in moved)]:
        with contextlib.suppress(Exception), _default(dtype):
            yield tree.tree_leaves(_plain(text))


def _wider(source: str) -> str:
    source = re.sub(r"torch\.(bfloat16|float16|float32)\b", "torch.float64", source)
    return source.replace("torch.complex64", "torch.complex128").replace(".float()", ".double()")


def _moved(source: str, n: int) -> str:
    """The inputs changed by some rounding errors."""

    def change(found: re.Match[str]) -> str:
        return f"{found[0]} * (1 + {n * EPS[getattr(torch, found[1])]})"

    dtypes = "float64|float32|bfloat16|float16|complex64"
    return re.sub(
        rf"^x\d+ = torch\.tensor\(.*dtype=torch\.({dtypes})\)$", change, source, flags=re.M
    )


@contextlib.contextmanager
def _default(dtype: torch.dtype) -> Iterator[None]:
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def _type(x: Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}"


def _shown(x: Tensor) -> str:
    return str(x.tolist())
