"""Runs of programs of several processes are compared; here the processes are objects."""

from __future__ import annotations

import pytest

from xfunc.backends.calls import Call, Calls, unanswered

pytestmark = pytest.mark.quick


def ran(*programs: str) -> Calls:
    calls = Calls()
    for program in programs:
        calls.add(f"name of {program}", program)
    return calls


def sent(call: Call) -> Call:
    return Call.read(str(call))


@pytest.mark.parametrize("name", ["", "f", "<lambda> at 3", "two\nlines"])
def test_call_text_is_read_back(name: str) -> None:
    assert sent(Call()) == Call()
    call = Call(7, "a", "b", True, name)
    assert sent(call) == call


def test_mismatch_in_step() -> None:
    first, other = ran(*"abca"), ran(*"abca")
    assert first.mismatch(1, sent(other.last)) is None
    other.add("g", "d")
    assert first.mismatch(1, sent(other.last)) is None  # It is ahead.
    first.add("g", "d")
    assert first.mismatch(1, sent(other.last)) is None
    assert ran(*"abcade").mismatch(1, sent(other.last)) is None  # It is behind.


def test_mismatch_of_programs_and_of_orders() -> None:
    first = ran(*"abc")
    assert (first.mismatch(1, sent(ran(*"abd").last)) or "").startswith(
        "run 3 of a program that communicates was name of d in process 1 and name of c in process 0"
    )
    assert "before their run 3" in (first.mismatch(2, sent(ran(*"bac").last)) or "")
    same = Calls()
    for program in "abd":
        same.add(f"name of {'c' if program == 'd' else program}", program)
    assert "name of c in both, but another program" in (first.mismatch(1, sent(same.last)) or "")


def test_mismatch_found_when_the_other_was_ahead() -> None:
    first, other = ran("a"), ran(*"ab")
    assert first.mismatch(1, sent(other.last)) is None
    for program in "cb":  # The other goes on as if nothing had happened.
        first.add(program, program)
        other.add(program, program)
    assert "run 2 of a program" in (first.mismatch(1, sent(other.last)) or "")


def test_meetings_compare_by_themselves() -> None:
    first, other = ran("a"), ran("a")
    first.add("f", "b", meets=True)
    other.add("g", "c", meets=True)
    assert first.mismatch(1, sent(other.last)) is None
    other.begin()  # The other runs it already.
    assert "run 2 of a program" in (first.mismatch(1, sent(other.last)) or "")


def test_meetings_that_failed_are_counted_alike() -> None:
    first, other = ran("a"), ran("a")
    before = first.add("f", "b", meets=True)
    assert other.add("g", "c", meets=True) == before
    late = sent(other.last)
    first.fail(before)
    other.fail(before)
    assert first.last.history == other.last.history
    assert first.mismatch(1, sent(other.last)) is None
    first.add("h", "d")
    assert first.mismatch(1, late) is None  # News of what the other was about to run.
    other.add("i", "e")
    assert "run 3 of a program" in (first.mismatch(1, sent(other.last)) or "")


def test_unanswered_run() -> None:
    latest = [ran(*"ab").last, ran(*"ab").last, ran(*"abc").last]
    assert unanswered(latest, []) is None
    assert unanswered(latest[:2], [0, 1]) is None
    assert "process 2 runs name of c, which communicates, and process 1" in (
        unanswered(latest, [1]) or ""
    )
