"""Random programs give what JAX gave for them: values, gradients and derivatives along a direction.

JAX's results are recorded: see `tests.support.differential.record`. A failing program is shown as
text; it can be pasted into a test of its own.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter

import pytest

from tests.support.differential import replay
from tests.support.differential.constructs import CONSTRUCTS
from tests.support.differential.generate import generate
from tests.support.differential.measure import Recorded, read

PROGRAMS = list(read())
TOGETHER = 10  # compiled as one function: compiling is what takes time
CHUNKS = [PROGRAMS[i : i + TOGETHER] for i in range(0, len(PROGRAMS), TOGETHER)]


def failures(programs: list[Recorded]) -> str:
    """Which of these differ from what is recorded, and how; nothing if none does."""
    try:
        results = replay.run(programs)
    except Exception as error:
        if len(programs) == 1:
            return f"{_title(programs[0])}\n{type(error).__name__}: {error}\n{programs[0].source}"
        return "\n".join(filter(None, (failures([p]) for p in programs)))
    texts = []
    for p, result in zip(programs, results, strict=True):
        lines = replay.differences(result, p)
        if lines:
            texts.append("\n".join([_title(p), *lines, p.source]))
    return "\n".join(texts)


def _title(p: Recorded) -> str:
    return f"program {p.number} ({' of '.join(p.nest) or 'plain'}), inputs {p.inputs}"


@pytest.mark.sample(32, seed=0)
@pytest.mark.parametrize("chunk", CHUNKS, ids=lambda c: f"{c[0].number}-{c[-1].number}")
def test_programs_equal_jax(chunk: list[Recorded]) -> None:
    found = failures(chunk)
    if found:
        pytest.fail(found, pytrace=False)


def test_record_holds_enough_programs() -> None:
    assert len(PROGRAMS) >= 500
    assert sum("grad" in p.want for p in PROGRAMS) >= 400
    assert sum("jvp" in p.want for p in PROGRAMS) >= 400
    assert max(len(p.nest) for p in PROGRAMS) == 4


def test_record_nests_every_pair_of_constructs() -> None:
    """A construct that may not stand where it was drawn is replaced: a while loop below reverse
    mode, a custom vjp below forward mode."""
    pairs = Counter(tuple(p.nest) for p in PROGRAMS if len(p.nest) == 2)
    assert set(pairs) == set(itertools.product(CONSTRUCTS, repeat=2))


@pytest.mark.parametrize("p", PROGRAMS[::7], ids=lambda p: p.number)
def test_record_matches_generated_programs(p: Recorded) -> None:
    program = generate(p.number, p.attempt)
    assert program.source == p.source
    assert program.arguments() == p.inputs
    assert (program.reversible, program.pushable) == (p.reversible, p.pushable)


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("sin(x1)", "cos(x1)", {"value", "grad", "jvp"}),
        ("stop_gradient(x2)", "x2", {"grad", "jvp"}),
        ("return y, n", "return y.double(), n", {"value", "jvp"}),
        ("n > 1", "n > 2", {"value", "grad", "jvp"}),
        ("return y, n", "return y", {"value"}),
        ("return y, n", "return y, n + 1", {"value"}),
        ("return y, n", "return y, real(n)", {"value", "jvp"}),
        ("return y, n", "return y[None], n", {"value", "jvp"}),
    ],
)
def test_differences_detect_wrong_program(old: str, new: str, parts: set[str]) -> None:
    """The comparison sees wrong values, derivatives, kinds, shapes and numbers of results."""
    source = (
        "def program(x1, x2, n):\n"
        "    y = sin(x1) * sum_(x2) + stop_gradient(x2) * where(n > 1, x1, 0.5)\n"
        "    return y, n\n"
    )
    inputs = {"x1": [0.3, -0.4], "x2": [0.5, 0.7], "n": 2}
    right = Recorded(0, 0, [], inputs, True, True, {}, source)
    (result,) = replay.run([right])
    want = {part: [x.tolist() for x in arrays] for part, arrays in result.items()}
    right = dataclasses.replace(right, want=want)
    assert failures([right]) == ""

    wrong = dataclasses.replace(right, source=source.replace(old, new))
    assert wrong.source != source
    (result,) = replay.run([wrong])
    found = {line.partition(":")[0].partition("[")[0] for line in replay.differences(result, right)}
    assert found == parts
