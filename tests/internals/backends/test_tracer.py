"""The seam below tracing: nothing needs more of a tracer than its protocol names."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import xfunc as xf
from xfunc.backends import active
from xfunc.backends.torch_xla import printer, tracer
from xfunc.backends.tracer import Printer, Tracer
from xfunc.ops import emit
from xfunc.sharding import AbstractMesh, NamedSharding, P


def names(protocol: type) -> set[str]:
    """The members of a protocol."""
    return {name for name in vars(protocol) if not name.startswith("_")}


class Strict:
    """Passes on what a protocol names, and notes what was asked for."""

    def __init__(self, protocol: type, behind: object):
        self._names, self._behind = names(protocol), behind
        self.asked: set[str] = set()

    def __getattr__(self, name: str) -> object:
        assert name in self._names, f"{name} is not in the protocol"
        self.asked.add(name)
        return getattr(self._behind, name)


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Strict, Strict]]:
    """A tracer and a printer in the place of torch_xla's, which have nothing but the protocols."""
    given = Strict(Tracer, tracer.TRACER), Strict(Printer, printer.PRINTER)
    with monkeypatch.context() as patch:
        patch.setattr(tracer, "TRACER", given[0])
        patch.setattr(printer, "PRINTER", given[1])
        active.tracer.cache_clear()
        active.printer.cache_clear()
        yield given
    active.tracer.cache_clear()
    active.printer.cache_clear()


def test_tracer_and_printer_of_torch_xla() -> None:
    assert isinstance(active.tracer(), Tracer)
    assert isinstance(active.printer(), Printer)


def _programs() -> list[str]:
    def step(c: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.linalg.inv(torch.outer(c, x) + 4 * torch.eye(3))[0], c.sin()

    third = NamedSharding(AbstractMesh((3,), ("x",)), P("x"))

    def loss(c: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        c = xf.with_sharding_constraint(c, third)
        c, ys = xf.scan(step, c, x)
        return ys.sum() * c.sort()[0].cumsum(0)[-1] * torch.tensor([1, 2]).sum()

    lowered = xf.jit(xf.grad(loss)).lower(torch.ones(3), torch.ones(2, 3))
    return [lowered.as_text(), lowered.as_text("stablehlo")]


def _times_k_plus_two(k: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor]:
    return (x * (k + 2),)


@pytest.mark.torch_xla
def test_tracer_protocol_is_sufficient(strict: tuple[Strict, Strict]) -> None:
    recorder, shower = strict
    through_protocols = _programs()
    product = xf.jit(lambda x: emit.loop(_times_k_plus_two, 3, [x])[0])
    assert product(torch.ones(2)).tolist() == [24, 24]
    leaked: list[torch.Tensor] = []
    with pytest.raises(xf.errors.LeakError, match="outlived its trace"):
        xf.jit(lambda x: leaked.append(x * 2))(torch.ones(2))
    with pytest.raises(RuntimeError, match="came after the device client had started"):
        xf.config.set_cpu_devices(2)
    seldom = {"at_start", "environment", "to_device", "upload", "is_recorded"}
    assert recorder.asked | seldom == names(Tracer)
    assert shower.asked | {"stablehlo_bytecode"} == names(Printer)
    active.tracer.cache_clear()
    assert through_protocols == _programs()
