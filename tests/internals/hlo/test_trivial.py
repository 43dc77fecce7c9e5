"""`drop_trivial` leaves out operations that torch_xla records without need, and no others."""

from collections import Counter

import pytest
import torch

import xfunc as xf
from xfunc.backends.torch_xla import runtime
from xfunc.hlo import Module, verify
from xfunc.hlo.passes.trivial import drop_trivial
from xfunc.torchlib.values import FLOAT8, SUPPORTED

from .conftest import Lower, Run

DTYPES = sorted(SUPPORTED - FLOAT8, key=str)
NUMBERS = [d for d in DTYPES if d is not torch.bool]


def left(module: Module) -> Module:
    """The module after the pass."""
    found = Module.from_bytes(module.to_bytes())
    drop_trivial(found.proto)
    found = Module(found.proto)
    verify(found)
    return found


def opcodes(module: Module) -> Counter[str]:
    return Counter(i.opcode for c in module.computations for i in c.instructions)


def check(lower: Lower, run: Run, function, *args: torch.Tensor) -> tuple[Module, Module]:
    """The module before and after the pass, which both give what eager torch gives."""
    with runtime.switched("ir_debug", True):  # which names the operations, as in a trace
        module = lower(lambda *args: [function(*args)], list(args))
    after = left(module)
    for m in (module, after):
        (found,) = run(m, list(args))
        assert torch.equal(found, function(*args))
    assert left(after).to_bytes() == after.to_bytes()
    return module, after


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
@pytest.mark.parametrize("function", [torch.add, torch.sub])
def test_drop_trivial_add_alpha_one(lower: Lower, run: Run, function, dtype) -> None:
    x, y = torch.tensor([3, 0, 5]).to(dtype), torch.tensor([1, 2, 2]).to(dtype)
    before, after = check(lower, run, function, x, y)
    assert opcodes(before)["multiply"] == 1  # else the pass is no longer needed
    opcode = "add" if function is torch.add else "subtract"
    assert opcodes(after) == {"parameter": 2, opcode: 1, "tuple": 1}


@pytest.mark.parametrize("alpha", [2, -1, 0])
def test_drop_trivial_keeps_other_alpha(alpha: int) -> None:
    x, y = torch.tensor([3.0, 0.0]), torch.tensor([1.0, torch.inf])
    f = xf.jit(lambda x, y: torch.add(x, y, alpha=alpha))
    assert opcodes(f.lower(x, y).module)["multiply"] == 1
    torch.testing.assert_close(f(x, y).cpu(), torch.add(x, y, alpha=alpha), equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (3,), (2, 1, 3), (0, 2)], ids=str)
def test_drop_trivial_where_broadcasts(lower: Lower, run: Run, shape, dtype) -> None:
    """`where` expands the condition, which is one boolean, and both values, which are not."""
    x = torch.ones(shape).to(dtype)
    chosen = torch.tensor(True)
    before, after = check(lower, run, torch.where, chosen, x, x.logical_not().to(dtype))
    names = {"parameter": 3, "select": 1, "tuple": 1}
    assert opcodes(before)["broadcast"] > opcodes(after)["broadcast"] or not shape
    expanding = {"broadcast": 1} | ({"reshape": 1} if 1 in shape else {})
    assert opcodes(after) == Counter(names | (expanding if shape else {}))


@pytest.mark.parametrize(
    ("function", "kept"),
    [
        (lambda x: x.expand(2, 3), {}),
        (lambda x: x.reshape(6).reshape(2, 3), {"reshape": 2}),
        (lambda x: x.permute(0, 1), {}),
        (lambda x: x.permute(1, 0).permute(1, 0), {"transpose": 2}),
        (lambda x: x.reshape(3, 2), {"reshape": 1}),
        (lambda x: x.T, {"transpose": 1}),
        (lambda x: x.reshape(2, 3, 1).expand(2, 3, 3), {"reshape": 2, "broadcast": 1}),
        (lambda x: x[:, :1].expand(2, 3), {"slice": 1, "reshape": 1, "broadcast": 1}),
    ],
)
def test_drop_trivial_reshape_transpose_expand(
    lower: Lower, run: Run, function, kept: dict[str, int]
) -> None:
    _, after = check(lower, run, function, torch.arange(6.0).reshape(2, 3))
    assert opcodes(after) == Counter({"parameter": 1, "tuple": 1} | kept)


def test_drop_trivial_keeps_transpose_of_square(lower: Lower, run: Run) -> None:
    _, after = check(lower, run, lambda x: x.T, torch.arange(4.0).reshape(2, 2))
    assert opcodes(after)["transpose"] == 1


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * (x.shape[0] - 7),
        lambda x: x / (x.shape[0] / 8),
        lambda x: x.reshape(-1).reshape(8, -1),
        lambda x: x[:1].expand(x.shape[0], 8) + x,
        lambda x: torch.where(x[0, 0] > 0, x, -x),
    ],
)
def test_drop_trivial_keeps_coincidences_of_dynamic_shapes(function) -> None:
    """At size 8 some change nothing: see NOTE [trivial at any size]."""
    S = xf.Dim("S", max=64)
    f = xf.jit(function, dynamic_shapes=((S, None),), buckets=[8, 16])
    for n in (2, 7, 8, 9):
        x = torch.arange(8.0 * n).reshape(n, 8)
        torch.testing.assert_close(f(x).cpu(), function(x))
    assert "bucket S<=8: 3 calls, one program" in f.explain()


def test_drop_trivial_argument_returned_unchanged() -> None:
    x = torch.arange(3.0)
    f = xf.jit(lambda x, y: (x.expand(3), x.reshape(1, 3).reshape(3) + y))
    same, sum_ = f(x, x)
    assert torch.equal(same.cpu(), x)
    assert torch.equal(sum_.cpu(), x + x)
    donating = xf.jit(lambda x: x.expand(3), donate_argnums=0)
    assert torch.equal(donating(xf.device_put(x)).cpu(), x)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 1), (2, 3)], ids=str)
def test_where_condition_of_other_shape(shape: tuple[int, ...]) -> None:
    """torch_xla would expand the choices too, to the shape that they have."""
    condition = torch.arange(torch.Size(shape).numel()).reshape(shape) % 2 == 0
    x, y = torch.arange(6.0).reshape(2, 3), -torch.arange(6.0).reshape(2, 3)
    f = xf.jit(lambda c, x, y: (torch.where(c, x, y), x.where(c, y), torch.where(c, x, 0.0)))
    expected = torch.where(condition, x, y), x.where(condition, y), torch.where(condition, x, 0.0)
    assert all(torch.equal(a.cpu(), b) for a, b in zip(f(condition, x, y), expected, strict=True))
    batched = xf.vmap(f, in_axes=(None, 0, 0)) if len(shape) < 2 else f
    found = batched(condition, x, y)
    assert all(torch.equal(a.cpu(), b) for a, b in zip(found, expected, strict=True))
    if not shape:
        g = xf.jit(torch.where).lower(condition, x, y).module
        assert opcodes(g) == {"parameter": 3, "broadcast": 1, "select": 1, "tuple": 1}
