"""`xf.memory_stats`, of stand-ins for devices that report it: a CPU does not."""

from types import SimpleNamespace
from typing import Any

import pytest

import xfunc as xf
from xfunc.backends import active
from xfunc.backends.pjrt import client
from xfunc.backends.torch_xla import runtime


class Device:
    """A device of JAX."""

    def __init__(self, stats: dict[str, int] | None):
        self.stats = stats

    def memory_stats(self) -> dict[str, int] | None:
        return self.stats


GPU = {"num_allocs": 3, "bytes_in_use": 5, "peak_bytes_in_use": 7, "bytes_limit": 9}


def test_memory_stats_on_pjrt(pjrt: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert xf.memory_stats() is xf.memory_stats(0) is None
    elsewhere, *here = Device(None), Device(GPU), Device({"bytes_in_use": 11}), Device(None)
    monkeypatch.setattr(client.jax(), "devices", lambda: [elsewhere, *here])
    monkeypatch.setattr(client.jax(), "local_devices", lambda: here)
    monkeypatch.delitem(vars(active.runtime()), "_local")  # as it was above
    first = {"bytes_in_use": 5, "peak_bytes_in_use": 7, "bytes_limit": 9}
    assert xf.memory_stats() == xf.memory_stats(1) == first
    assert xf.memory_stats(2) == {"bytes_in_use": 11}
    assert xf.memory_stats(3) is None
    assert xf.local_devices() == [1, 2, 3]
    assert xf.local_device_count() == 3
    wrong: Any
    for wrong in (0, 4, "cuda"):
        with pytest.raises(ValueError, match=r"of this process are \[1, 2, 3\](.|\n)*Hint: pass"):
            xf.memory_stats(wrong)


@pytest.mark.torch_xla
def test_memory_stats_on_torch_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    used = {"bytes_used": 290816, "bytes_limit": 34088157184, "peak_bytes_used": 500816}
    where, _ = str(runtime.device()), runtime.device_count()
    library = SimpleNamespace(
        _xla_memory_info={where: used}.__getitem__,
        _xla_get_runtime_devices=lambda: ["TPU:0"],
    )
    monkeypatch.setattr(runtime, "is_cpu", lambda: False)
    monkeypatch.setattr(runtime, "xla", lambda: library)
    want = {"bytes_in_use": 290816, "peak_bytes_in_use": 500816, "bytes_limit": 34088157184}
    assert xf.memory_stats() == want
