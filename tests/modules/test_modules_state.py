"""`xf.functional` leaves the state of a module unchanged, and notices where it changes."""

import copy
import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import xfunc as xf
from tests.modules.common import assert_close, rand

pytestmark = [pytest.mark.usefixtures("seeded"), pytest.mark.quick]


# -- purity ---------------------------------------------------------------------------------------


def attributes(module: nn.Module) -> list[dict[str, Any]]:
    """All that stands in the attributes of all submodules, as it is."""
    inside = ("_parameters", "_buffers", "_modules")
    return [{**vars(m), **{k: dict(vars(m)[k]) for k in inside}} for m in module.modules()]


class Busy(nn.Module):
    """A module that changes all it has in its forward pass."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()), persistent=False)
        self.register_buffer("last", torch.zeros(3))
        self.weight = nn.Parameter(torch.ones(3))
        self.calls = 0

    def forward(self, x: Tensor, fail: bool = False) -> Tensor:
        self.count += 1
        self.last = x * self.weight
        self.calls += 1
        self.cached = self.last
        self.register_buffer("more", self.last)
        if fail:
            raise KeyError("as asked")
        return self.last * self.count


@pytest.mark.parametrize("eager", [False, True])
def test_functional_returns_buffers_and_keeps_module(eager: bool) -> None:
    module = Busy()
    before = attributes(module)
    apply, params, buffers = xf.functional(module)
    assert set(buffers) == {"count", "last"}
    x = torch.tensor([1.0, 2.0, 3.0])
    with xf.disable_jit(eager):
        run = xf.jit(apply)
        for i in range(1, 3):
            out, buffers = run(params, buffers, x)
            assert_close(out, x * i)
            assert_close(buffers, {"count": torch.tensor(float(i)), "last": x})
    after = attributes(module)
    assert [d.keys() for d in before] == [d.keys() for d in after]
    for old, new in zip(before, after, strict=True):
        for key in old.keys() - {"_parameters", "_buffers", "_modules"}:
            assert old[key] is new[key]
        assert all(old["_buffers"][k] is t for k, t in new["_buffers"].items())
        assert all(old["_parameters"][k] is t for k, t in new["_parameters"].items())
    assert module.count.item() == module.calls == 0


@pytest.mark.parametrize("eager", [False, True])
def test_functional_forward_raising_keeps_module(eager: bool) -> None:
    module = Busy()
    apply, params, buffers = xf.functional(module)
    x = torch.ones(3)
    with xf.disable_jit(eager), pytest.raises(KeyError, match="as asked"):
        xf.jit(lambda p, b, x: apply(p, b, x, fail=True))(params, buffers, x)
    assert module.weight is dict(module.named_parameters())["weight"]
    assert isinstance(module.weight, nn.Parameter)
    assert module.calls == 0
    assert not hasattr(module, "cached")
    assert not hasattr(module, "more")
    out, _ = xf.jit(apply)(params, buffers, x)
    assert_close(out, x)


def test_functional_tensors_are_copies() -> None:
    module = nn.BatchNorm1d(2)
    _, params, buffers = xf.functional(module)
    with torch.no_grad():
        module.weight.add_(1)
        next(module.buffers()).add_(1)
    assert_close(params["weight"], torch.ones(2))
    assert_close(buffers["running_mean"], torch.zeros(2))
    assert not any(t.requires_grad for t in params.values())
    module = module.to(params["weight"].device)
    _, params, buffers = xf.functional(module)
    run = xf.jit(lambda p, b: (xf.tree.map(lambda t: t + 1, p), b), donate_argnums=(0, 1))
    run(params, buffers)
    assert_close(module.weight.detach(), torch.full((2,), 2.0))
    assert_close(module.running_mean, torch.ones(2))


def test_functional_parameter_changed_in_place_is_refused() -> None:
    class Bad(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            with torch.no_grad():
                self.weight.mul_(2)
            return super().forward(input)

    apply, params, buffers = xf.functional(Bad(2, 2))
    with pytest.raises(xf.errors.PurityError, match=r"mul_ changes params\['weight'\]"):
        xf.jit(apply)(params, buffers, torch.ones(1, 2))


def test_functional_apply_outside_transforms_is_eager() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    apply, params, buffers = xf.functional(module)
    x = rand(4, 3)
    out, new = apply(params, buffers, x)
    on_host, _ = apply(xf.device_get(params), xf.device_get(buffers), x)
    expected = module(x).detach()
    assert_close(out, expected)
    assert_close(on_host, expected)
    assert_close(new, {f"1.{n}": b for n, b in module[1].named_buffers()})


# -- the cache ------------------------------------------------------------------------------------

_apply: Any = None


@pytest.mark.parametrize("held", ["global", "closure"])
def test_functional_training_mode_read_at_call(held: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    apply, params, buffers = xf.functional(module)
    monkeypatch.setitem(globals(), "_apply", apply)
    through_closure = xf.jit(lambda p, x: apply(p, buffers, x)[0])
    through_global = xf.jit(lambda p, x: _apply(p, buffers, x)[0])
    inner = through_global if held == "global" else through_closure
    xf.clear_caches()
    outer = xf.jit(lambda p, x: inner(p, x) * 2)
    x = rand(4, 3)
    for training in (True, False, True, False):
        module.train(training)
        expected = copy.deepcopy(module)(x).detach()
        assert_close(inner(params, x), expected)
        assert_close(outer(params, x), expected * 2)
    assert inner.cache_info().traces == 2
    assert outer.cache_info().traces == 2
    assert outer.cache_info().size == 2


_factor, _shift = 2.0, 0.0


class Scaled(nn.Module):
    """A module that computes by globals, a helper and an attribute of its class."""

    power = 1

    def forward(self, x: Tensor) -> Tensor:
        return _shifted(x * _factor) ** self.power


def _shifted(x: Tensor) -> Tensor:
    return x + _shift


def test_functional_globals_and_classes_that_forward_reaches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = Scaled()
    apply, _, _ = xf.functional(module)
    run, x = xf.jit(lambda x: apply({}, {}, x)[0]), torch.tensor([1.0, 2.0])

    def check() -> None:
        assert_close(run(x), module(x))

    check()
    monkeypatch.setitem(globals(), "_factor", 3.0)
    check()
    monkeypatch.setitem(globals(), "_shift", 1.0)
    check()
    monkeypatch.setattr(Scaled, "power", 2)
    check()
    monkeypatch.setattr(Scaled, "forward", lambda self, x: -x)
    check()
    monkeypatch.setattr(module, "forward", lambda x: x * 100)
    check()
    assert run.cache_info().traces == 6


def test_explain_names_changed_module_state() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)).eval()
    apply, params, _ = xf.functional(module)
    run = xf.jit(lambda p, x: apply(p, {}, x)[0])
    run(params, rand(2, 3))
    module[0].train()
    run(params, rand(2, 3))
    assert "last miss: the state of a module changed: False -> True in 0.training" in run.explain()


class Configured(nn.Module):
    """A module that computes by a plain object, a list and a hook."""

    @dataclasses.dataclass
    class Config:
        scale: float = 2.0

    def __init__(self) -> None:
        super().__init__()
        self.config = self.Config()
        self.shifts = [1.0]
        self.table = torch.ones(2)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.config.scale + sum(self.shifts) + self.table


def double(module: nn.Module, args: Any, out: Any) -> Any:
    return out * 2


def test_jit_retraces_on_changed_module_attributes() -> None:
    module = Configured()
    apply, params, buffers = xf.functional(module)
    run = xf.jit(lambda x: apply(params, buffers, x)[0])
    x = torch.tensor([1.0, 2.0])

    def check(traces: int) -> None:
        assert_close(run(x), module(x))
        assert run.cache_info().traces == traces

    check(1)
    module.config.scale = 3.0
    check(2)
    module.config = Configured.Config(3.0)  # The same value.
    check(2)
    module.shifts.append(4.0)
    check(3)
    module.table = torch.zeros(2)
    check(4)
    hook = module.register_forward_hook(double)
    check(5)
    hook.remove()
    check(5)
    module.config.scale = 2.0
    check(6)


class Lazy(nn.Module):
    """A module that registers a hook when it first runs, and keeps a table for each dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.weight = nn.Parameter(torch.ones(2))
        self.tables: dict[torch.dtype, Tensor] = {}
        self.again = self.tables
        self.is_hooked = False

    def forward(self, x: Tensor) -> Tensor:
        if not self.is_hooked:
            self.inner.register_forward_hook(double)
            self.is_hooked = True
        if x.dtype not in self.tables:
            self.tables[x.dtype] = self.weight * 3
        return self.inner(x) + self.again[x.dtype]


@pytest.mark.parametrize("eager", [False, True])
def test_functional_undoes_hooks_and_entries_of_dicts(eager: bool) -> None:
    module = Lazy()
    apply, params, buffers = xf.functional(module)

    def loss(params: Any, x: Tensor) -> Tensor:
        return apply(params, buffers, x)[0].square().sum()

    run = loss if eager else xf.jit(xf.grad(loss))
    first = [run(params, torch.ones(n, 2)) for n in (1, 2, 3)]
    assert not module.tables
    want = module(torch.ones(2, 2)).square().sum()
    if eager:
        assert_close(first[1], want.detach())
    else:
        want.backward()
        assert_close(first[1], {n: p.grad for n, p in module.named_parameters()})


def test_jit_modules_of_one_class_share_no_programs() -> None:
    def of(module: nn.Module) -> Any:
        apply, params, buffers = xf.functional(module)
        return xf.jit(lambda x: apply(params, buffers, x)[0])(torch.ones(2))

    first, second = nn.Threshold(0.0, 1.0), nn.Threshold(5.0, 7.0)
    assert_close(of(first), torch.ones(2))
    assert_close(of(second), torch.full((2,), 7.0))
    assert_close(of(nn.Sequential(first, second)), torch.full((2,), 7.0))


def test_functional_module_nested_in_own_apply() -> None:
    inner = nn.Linear(2, 2)
    apply, params, _ = xf.functional(inner)

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            again = xf.jit(lambda p, x: apply(p, {}, x)[0])(params, x)
            return self.inner(x) * (1 if self.training else 3) + again

    outer = Outer()
    apply_outer, outer_params, _ = xf.functional(outer)
    run = xf.jit(lambda p, x: apply_outer(p, {}, x)[0])
    run.clear_cache()
    x = rand(1, 2)
    for factor in (2, 4, 2, 4):
        outer.train(factor == 2)
        assert_close(run(outer_params, x), factor * inner(x).detach())
    assert run.cache_info().traces == 2
