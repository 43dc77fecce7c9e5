"""Random programs of xfunc give what plain torch gives for what they mean: values, dtypes, shapes.

They are of all dtypes, and hold views, changes in place and indices of every sort, in all
transforms. A failing program is shown as text that runs, made as small as it fails.
"""

from __future__ import annotations

import pytest

import xfunc as xf
from tests.support.differential.eager.compare import Outcome, outcome
from tests.support.differential.eager.constructs import CONSTRUCTS
from tests.support.differential.eager.generate import HEADER, Program, generate
from tests.support.differential.eager.minimise import minimised

CHUNK = 20


def failures(programs: list[Program]) -> list[Program]:
    """Those of the programs that differ, or meet an error without a name."""
    found = [p for p in programs if outcome(p).kind in ("differs", "error")]
    xf.clear_caches()
    return found


def shown(program: Program) -> str:
    """How a program fails, and its smallest form."""
    text = minimised(program.source)
    return f"# program {program.name}: {outcome(text)}\n{HEADER}{text}"


@pytest.mark.sample(4, seed=0)
@pytest.mark.parametrize("first", range(0, 100, CHUNK))
def test_fixed_programs_equal_torch(first: int) -> None:
    found = failures([generate(0, n) for n in range(first, first + CHUNK)])
    if found:
        pytest.fail("\n".join(map(shown, found)), pytrace=False)


@pytest.mark.slow
def test_seeded_programs_equal_torch(seed: int) -> None:
    """One may differ or meet an error without a name: of 1,800 others two did."""
    chunks = [range(n, n + CHUNK) for n in range(0, 200, CHUNK)]
    found = [p for chunk in chunks for p in failures([generate(f"seed {seed}", n) for n in chunk])]
    if len(found) > 1:
        names = ", ".join(p.name for p in found)
        text = "\n".join(map(shown, found[:3]))
        pytest.fail(f"{len(found)} of 200 programs fail: {names}\n{text}", pytrace=False)


def test_generate_is_deterministic() -> None:
    first, again, other = generate("a", 3), generate("a", 3), generate("b", 3)
    assert first.source == again.source
    assert first.source != other.source
    assert first.source != generate("a", 4).source


def test_generate_nests_every_construct() -> None:
    nests = [generate("nests", n).nest for n in range(120)]
    assert {word for nest in nests for word in nest[1:]} == set(CONSTRUCTS)
    assert max(map(len, nests)) == 3


RIGHT = (
    "x1 = torch.tensor([0.5, -1.0], dtype=torch.float32)\n"
    "def f1(a1):\n"
    "    v1 = a1.clone()\n"
    "    v1[0] += 2\n"
    "    return {'a': v1.sin(), 'b': (a1 > 0).sum()}\n"
    "out = xf.jit(f1)(x1)\n"
)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("v1.sin()", "v1.sin() + (1e-4 if xf.__name__ == 'xfunc' else 0)"),
        ("v1.sin()", "v1.sin() * (float('nan') if xf.__name__ == 'xfunc' else 1)"),
        ("v1.sin()", "v1.sin()[None if xf.__name__ == 'xfunc' else ...]"),
        ("v1.sin()", "v1.to(torch.float64 if xf.__name__ == 'xfunc' else torch.float32)"),
        ("(a1 > 0).sum()", "(a1 > (0 if xf.__name__ == 'xfunc' else -2)).sum()"),
        ("'b'", "('b' if xf.__name__ == 'xfunc' else 'c')"),
    ],
)
def test_outcome_detects_wrong_result(old: str, new: str) -> None:
    assert outcome(RIGHT) == Outcome("equal")
    wrong = RIGHT.replace(old, new)
    assert wrong != RIGHT
    assert outcome(wrong).kind == "differs"


def test_outcome_kinds_of_errors() -> None:
    assert outcome(RIGHT.replace("v1.sin()", "v1.numpy()")).kind == "refused"
    assert outcome(RIGHT.replace("v1.sin()", "v1.wave()")).kind == "torch refuses"
    text = RIGHT.replace("v1.sin()", "1 / (xf.__name__ != 'xfunc')")
    assert outcome(text) == Outcome("error", "ZeroDivisionError: division by zero")


def test_outcome_ignores_rounding() -> None:
    """The logarithm of what is nearly 1 is the rounding error of what came before."""
    text = RIGHT.replace("v1.sin()", "(a1.sin() ** 2 + a1.cos() ** 2).log() * 1e4")
    assert outcome(text) == Outcome("equal")
    text = RIGHT.replace("v1.sin()", "(a1.to(torch.bfloat16) / 3).exp() * 3")
    assert outcome(text) == Outcome("equal")


def test_outcome_ignores_unspecified_behaviour() -> None:
    """Whether `reshape` copies; and the NaN beside an infinity in a sum of complex numbers."""
    text = RIGHT.replace("v1.sin()", "written(a1.outer(a1).t() + 1)")
    text = "def written(v):\n    w = v.flatten()\n    v *= 2\n    return w\n" + text
    assert outcome(text) == Outcome("equal")
    assert outcome(text.replace("v *= 2", "v = v * 2")) == Outcome("equal")
    text = RIGHT.replace("v1.sin()", "((v1 + 2j) + torch.inf).imag")
    assert outcome(text) == Outcome("equal")


def test_minimised_failing_program() -> None:
    text = RIGHT.replace(
        "    return", "    v2 = a1 * 3 if xf.__name__ == 'xfunc' else a1\n    return"
    )
    text = text.replace("'b': ", "'c': v2, 'b': ")
    assert outcome(text).kind == "differs"
    small = minimised(text)
    assert outcome(small).kind == "differs"
    assert "v1" not in small
