"""The meeting of processes before JAX connects them; here they are threads of one."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed import Store, TCPStore

from tests.support.processes import free_port
from xfunc.backends.rendezvous import MeetingPoint, Member, meet


@pytest.fixture
def address() -> str:
    return f"127.0.0.1:{free_port()}"


def member(index: int, count: int, platform: str = "the CPU") -> Member:
    return Member(index, count, platform, f"host{index}")


def come(address: str, members: Sequence[Member], timeout: float = 60) -> list[str]:
    """What each is told, if they come together."""
    stores: list[Store] = []  # The first one keeps it for all.

    def one(own: Member) -> str:
        try:
            store = meet(MeetingPoint(address, own.count, own.index), own, timeout)
        except RuntimeError as error:
            return str(error)
        stores.append(store)
        store.set(f"{own.index}", "here")
        return ",".join(store.get(str(k)).decode() for k in range(own.count))

    with ThreadPoolExecutor(len(members)) as pool:
        return list(pool.map(one, members))


def test_meet_shares_a_store(address: str) -> None:
    assert come(address, [member(k, 3) for k in range(3)]) == ["here,here,here"] * 3


@pytest.mark.parametrize(
    ("members", "problem"),
    [
        (
            [member(0, 3), member(1, 3), member(1, 3)],
            "host1 and host1 both say that they are process 1",
        ),
        ([member(0, 2), member(0, 2)], "host0 and host0 both say that they are process 0"),
        (
            [member(0, 2), member(1, 3)],
            r"process (\d) \(host\1\) was told that there are . processes, and process (\d) "
            r"\(host\2\) that there are .\n",
        ),
        (
            [member(0, 2), member(1, 2, "accelerators")],
            r"process (\d) \(host\1\) runs on .*, and process (\d) \(host\2\) on ",
        ),
    ],
)
def test_meet_conflicting_members_are_told_to_all(
    address: str, members: Sequence[Member], problem: str
) -> None:
    said = come(address, members)
    assert len(set(said)) == 1
    assert re.search(rf"initialize: {problem}(.|\n)*Hint: start as many processes as", said[0])


def test_meet_missing_member_times_out(address: str) -> None:
    for said in come(address, [member(0, 3), member(2, 3)], timeout=2):
        assert f"of 3 processes, 1 did not come to {address} within 2 seconds; there wer" in said
        assert "process 0 (host0)" in said
        assert "process 2 (host2)" in said


def test_meet_late_member_is_refused(address: str) -> None:
    kept = meet(MeetingPoint(address, 1, 0), member(0, 1), 60)
    with pytest.raises(RuntimeError, match=r"are 1 processes, and process 1 \(host1\) that"):
        meet(MeetingPoint(address, 2, 1), member(1, 2), 60)
    assert kept.num_keys() > 0


def test_meet_without_answer_raises(address: str) -> None:
    with pytest.raises(RuntimeError, match=rf"no process 0 answers at {address}(.|\n)*Hint: "):
        meet(MeetingPoint(address, 2, 1), member(1, 2), 0.5)


def test_meet_at_address_of_another_host_raises(address: str) -> None:
    elsewhere = address.replace("127.0.0.1", "192.0.2.1")  # reserved for documentation
    with pytest.raises(RuntimeError, match=r"no process 0 answers .* cannot listen there itself: "):
        meet(MeetingPoint(elsewhere, 2, 0), member(0, 2), 0.5)


def test_meet_at_foreign_port_raises() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(RuntimeError, match="does not answer as a process of xfunc"):
            meet(MeetingPoint(address, 2, 1), member(1, 2), 1)


def test_meet_at_store_of_launcher(address: str) -> None:
    """Each time that it starts the processes again, they meet anew."""
    port = int(address.rpartition(":")[2])
    kept = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    for attempt in "01":
        point = MeetingPoint(address, 1, 0, attempt, is_kept=True)
        assert meet(point, member(0, 1), 60).num_keys() > 0
    assert kept.num_keys() > 0
