"""`xf.distributed` tells the other processes when one ends."""

from __future__ import annotations

import os
import re
import signal

import pytest

import xfunc as xf
from tests.support.fresh import Server
from tests.support.processes import free_port

LOST = os.EX_UNAVAILABLE  # the status of a process that has lost another one

PROGRAM = """
import os, signal, sys, threading
import xfunc as xf
address, index, how = sys.argv[1:]
xf.distributed.initialize(address, 2, int(index))
if how == "the same":
    raise KeyError(how)
class Silent(Exception):
    def __str__(self):
        raise ValueError("no text")
class Broken:
    def write(self, text):
        raise BrokenPipeError(32, "Broken pipe")
    flush = write
if how == "broken":
    sys.stdout = Broken()
if index == "1":
    if how == "uncaught":
        raise KeyError(how)
    if how == "interrupted":  # A process started in the background may ignore it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.raise_signal(signal.SIGINT)
    if how == "silent":
        raise Silent
    if how == "another hook":
        sys.excepthook = lambda *_: None
        raise KeyError(how)
    if how == "an error":
        xf.distributed.abort(KeyError("tokens"), 3)
    if how == "not UTF-8":
        xf.distributed.abort("error: no file \\udcff.txt", 2)
    if how == "wrong status":
        xf.distributed.abort("error: no settings", "2")
    if how in ("killed", "broken"):
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "abort":
        xf.distributed.abort("error: no settings", 2)
    if how == "exit":
        sys.exit(0)
    if how == "early":
        raise SystemExit
    if how == "status":
        sys.exit(3)
    if how == "thread":
        thread = threading.Thread(target=lambda: {}["thread"])
        thread.start()
        thread.join()
    if how == "interactive":
        sys.ps1 = ">>> "
        try:
            raise KeyError(how)
        except KeyError:
            sys.excepthook(*sys.exc_info())
    if how == "fork":
        if not (child := os.fork()):
            try:
                raise KeyError(how)
            except KeyError:
                sys.excepthook(*sys.exc_info())
                os._exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
if how not in ("exit",):
    xf.distributed.sync_global_devices("the end")
print("at the end")
"""


def ends(fresh: Server, how: str, code: str = PROGRAM) -> list[tuple[int, list[str], str]]:
    """The status of each of two processes, and what it printed."""
    address = f"127.0.0.1:{free_port()}"
    env = {"JAX_PLATFORMS": "cpu"}
    running = [fresh.start(code, address, k, how, env=env) for k in range(2)]
    done = [process.wait() for process in running]
    return [
        (d.returncode, [x for x in d.stdout.splitlines() if "Gloo" not in x], d.stderr)
        for d in done
    ]


@pytest.mark.sample(4, seed=0)
@pytest.mark.parametrize(
    ("how", "status", "reason"),
    [
        ("uncaught", 1, "process 1 failed: KeyError: 'uncaught'"),
        ("interrupted", -signal.SIGINT, "process 1 failed: KeyboardInterrupt"),
        ("abort", 2, "process 1 failed: error: no settings"),
        ("silent", 1, "process 1 failed: Silent: its text cannot be shown"),
        ("an error", 3, "process 1 failed: KeyError: 'tokens'"),
        ("not UTF-8", 2, r"process 1 failed: error: no file \\udcff.txt"),
        ("wrong status", 1, "process 1 failed: ValueError: abort was given '2' as status, and the"),
        ("broken", -signal.SIGKILL, "process 1 is gone: it was killed, crashed, or has said"),
        ("killed", -signal.SIGKILL, "process 1 is gone: it was killed, crashed, or has said"),
    ],
)
def test_distributed_failure_ends_other_processes(
    fresh: Server, how: str, status: int, reason: str
) -> None:
    (first, _, said), (second, printed, why) = ends(fresh, how)
    assert (first, second) == (LOST, status), said + why
    assert printed == []
    assert re.search(f"^error: {reason}.* This process, 0, ends too: restart", said, re.MULTILINE)
    assert ("KeyError: 'uncaught'" in why) == (how == "uncaught")
    assert ("process 1: error: no settings" in why) == (how == "abort")


def test_distributed_error_in_all_is_reported_by_first(fresh: Server) -> None:
    (first, _, said), (second, _, nothing) = ends(fresh, "the same")
    assert (first, second) == (1, 1), said + nothing
    assert "KeyError: 'the same'" in said
    assert "KeyError" not in nothing


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize("how", ["exit", "thread", "interactive", "fork"])
def test_distributed_harmless_end_leaves_others_running(fresh: Server, how: str) -> None:
    (first, said, whole), (second, printed, why) = ends(fresh, how)
    assert (first, second) == (0, 0), whole + why
    assert said == ["at the end"]
    assert printed == {"exit": [], "fork": ["7", "at the end"]}.get(how, ["at the end"])
    assert (f"KeyError: '{how}'" in why) == (how != "exit")


def test_distributed_abort_in_one_process(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^3$"):
        xf.distributed.abort("error: alone", 3)
    assert capsys.readouterr().err == f"error: alone{os.linesep}"
