"""`xfunc.backends.lock` and forks."""

from __future__ import annotations

from tests.backends.test_forks import BEGIN, CUT_OFF
from tests.support.fresh import Server

LOCK = "from xfunc.backends.lock import lock"


def test_lock_held_by_thread_during_fork(fresh: Server) -> None:
    code = """
held, done = threading.Event(), threading.Event()
def hold():
    with lock:
        held.set()
        done.wait()
thread = threading.Thread(target=hold)
thread.start()
held.wait()
assert child(lambda: f(x)) == 0
done.set()
thread.join()
assert f(x).tolist() == [2, 2, 2]
"""
    found = fresh.run(BEGIN + LOCK + code)
    assert found.returncode == 0, found.stderr
    assert CUT_OFF in found.stdout
