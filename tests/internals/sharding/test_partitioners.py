"""What the compilers of the backend ``"pjrt"`` are given, for GSPMD, for Shardy and for a TPU."""

from __future__ import annotations

import contextlib
import os
import re
from typing import Any

import pytest

import xfunc as xf
from tests.support.jax_names import names
from tests.support.shard_map_programs import programs
from xfunc.aot import compiled as ahead
from xfunc.aot.request import Request
from xfunc.backends.pjrt import executable
from xfunc.graph import opcodes
from xfunc.hlo import Module

PROGRAMS = programs(names())


class _Enough(BaseException):
    """In place of a compiler's answer."""


def handed_over(f: Any, monkeypatch: pytest.MonkeyPatch) -> list[Module]:
    """What JAX is given to compile, for either partitioner, and libtpu."""
    given: list[bytes] = []
    xf.clear_caches()

    def to_jax(name: str, module: Module, *rest: object) -> None:
        given.append(module.to_bytes())
        raise _Enough

    def to_libtpu(request: Request, *rest: object) -> None:
        given.append(request.module)
        raise _Enough

    monkeypatch.setattr(executable, "_exported", to_jax)
    monkeypatch.setattr(ahead, "result_of", to_libtpu)
    xf.config.set_backend("pjrt")
    try:
        with monkeypatch.context() as patched:
            patched.setattr(xf.config, "use_shardy_partitioner", True)
            lowered = xf.jit(f).lower()
        for shardy in (False, True):
            with monkeypatch.context() as patched, contextlib.suppress(_Enough):
                patched.setattr(xf.config, "use_shardy_partitioner", shardy)
                lowered.compile()
    finally:
        xf.config.set_backend(os.environ.get("XFUNC_BACKEND", "torch_xla"))
    with contextlib.suppress(_Enough):
        lowered.compile(target="tpu:v6e:2x4")
    assert len(given) == 3
    return list(map(Module.from_bytes, given))


@pytest.mark.usefixtures("executables_not_kept")
@pytest.mark.sample(6, seed=0)
@pytest.mark.parametrize("name", PROGRAMS)
def test_compilers_are_given_listed_replica_groups(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Newer releases of jaxlib lose the compact form, ``replica_groups=[2,4]<=[8]``."""
    for module in handed_over(PROGRAMS[name], monkeypatch):
        assert not re.search(r"replica_groups=\[[\d,]+\]<=", str(module))
        for i in (i for c in module.proto.computations for i in c.instructions):
            if i.opcode in opcodes.COLLECTIVES - {"collective-permute"}:
                groups = i.collective_device_list
                assert not groups.HasField("iota_replica_group_list")
                devices = [d for g in groups.replica_groups for d in g.replica_ids]
                assert sorted(devices) == list(range(8))
