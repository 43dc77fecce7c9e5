"""memory_report: bytes kept, operations recomputed, the peak, per chip too; and the picture."""

import functools
import sys
from typing import Any

import pytest
import torch

import xfunc as xf
from examples.llama import model, train
from examples.llama.model.plan import Plan
from examples.llama.parallel import sharding
from xfunc import NamedSharding, P
from xfunc import checkpoint_policies as cp

F32 = torch.float32
KIB = 1024


def S(*shape, spec=None, dtype=F32):
    sharding = None if spec is None else NamedSharding(MESH, spec)
    return xf.ShapeDtypeStruct(shape, dtype, sharding)


MESH = xf.AbstractMesh((2, 4), ("x", "y"))
DENSE = Plan(attention="dense", loss_chunk=4096)
SQUARE = S(64, 64)  # 16 KiB
NO_FUNCTION: Any = 3


def plain(x, w):
    return torch.tanh(torch.tanh(x @ w) @ w).sum()


def layer(h, w):
    return torch.tanh(torch.tanh(h @ w) @ w.T), None


def scanned(x, ws, policy=None):
    return xf.scan(layer, x, ws, checkpoint_policy=policy)[0].sum()


def rows(*args, **options):
    return {row.policy: row for row in xf.memory_report(*args, **options).rows}


def test_memory_report_policies_of_plain_function():
    found = rows(plain, SQUARE, SQUARE)
    kept = {name: row.kept_bytes for name, row in found.items()}
    assert kept["as written"] == kept["everything"] == 32 * KIB  # the two results of tanh
    assert kept["nothing"] == 0
    assert kept["dots"] == kept["dots_with_no_batch_dims"] == 32 * KIB
    assert [*kept][-1] == "min_cut()"
    again = {name: row.recomputed_flops for name, row in found.items()}
    assert again["everything"] == again["as written"] == 0
    assert again["nothing"] == 2 * 2 * 64**3 + 2 * 64**2  # both products, both tanh
    assert again["dots"] == 2 * 64**2


def test_memory_report_policies_of_scan():
    policies = {"all": cp.everything_saveable, "none": cp.nothing_saveable}
    args = S(4, 32), S(6, 32, 32)
    wide, narrow = 6 * 2 * 4 * 32 * 4, 6 * 4 * 32 * 4  # two values of each step; only the carry
    for own in (None, cp.nothing_saveable):
        found = rows(functools.partial(scanned, policy=own), *args, policies=policies)
        assert found["all"].kept_bytes > found["none"].kept_bytes == narrow
        assert found["all"].kept_bytes >= wide
        same = found["none" if own else "all"]
        assert found["as written"].kept_bytes == same.kept_bytes
        assert found["as written"].peak_bytes == same.peak_bytes
        assert found["none"].recomputed_flops > 0


def test_memory_report_policies_of_nested_functions():
    inner = xf.jit(xf.checkpoint(layer, policy=cp.dots_saveable))

    def f(x, w):
        return xf.jit(lambda h: inner(h, w)[0].sum())(x)

    found = rows(f, SQUARE, SQUARE, policies=[cp.everything_saveable, cp.nothing_saveable])
    assert found["everything"].kept_bytes == 32 * KIB
    assert found["nothing"].kept_bytes == 0


def test_memory_report_leaves_no_state():
    args = torch.ones(4, 32), torch.ones(6, 32, 32) / 32

    def text():
        return xf.jit(xf.grad(scanned)).lower(*args).as_text()

    def broken(x):
        raise KeyError("of the user's")

    before = text()
    first = str(xf.memory_report(scanned, *args))
    assert text() == before
    assert str(xf.memory_report(scanned, *args)) == first
    with pytest.raises(KeyError, match="of the user's"):
        xf.memory_report(broken, 1.0)
    assert text() == before
    assert str(xf.memory_report(scanned, *(S(*t.shape) for t in args))) == first


def test_memory_report_policy_names():
    def mine(i):
        return i.opcode == "tanh"

    policies = [cp.min_cut(), cp.min_cut(40 * KIB), mine, cp.dots_saveable]
    found = list(rows(plain, SQUARE, SQUARE, policies=policies))
    assert found[0] == "as written"
    assert found[1] == "min_cut()"
    assert "40960" in found[2]
    assert found[3:] == ["mine", "dots"]


def test_memory_report_offloaded_bytes():
    def step(h, w):
        return torch.sin(xf.checkpoint_name(torch.tanh(h @ w), "h")), None

    offload = cp.save_and_offload_only_these_names(
        names_which_can_be_saved=[], names_which_can_be_offloaded=["h"]
    )

    def f(x, ws):
        return xf.scan(step, x, ws)[0].sum()

    report = xf.memory_report(f, S(4, 32), S(6, 32, 32), policies={"away": offload})
    away = report.rows[1]
    assert away.host_bytes == 6 * 4 * 32 * 4
    assert report.rows[0].host_bytes == 0
    assert "on the host" in str(report)
    assert "on the host" not in str(xf.memory_report(f, S(4, 32), S(6, 32, 32)))


def test_memory_report_text():
    text = str(xf.memory_report(scanned, S(64, 32), S(60, 32, 32), policies=[cp.dots_saveable]))
    assert "value and gradient of scanned, estimated" in text
    assert "recomputed FLOPs" in text
    assert "per chip" not in text
    assert "dots, at the peak:" in text
    assert "torch.tanh(torch.tanh(h @ w) @ w.T)" in text
    assert "the arguments" in text


def test_memory_report_peak_near_compiler_peak():
    config = model.Config(512, hidden=128, intermediate=352, layers=4, heads=4, kv_heads=2)

    def loss(params, batch):
        return model.loss(params, batch, config, DENSE)

    tokens: Any = S(4, 128, dtype=torch.int64)
    args = model.shapes(config, F32), model.Batch(tokens, tokens)
    (row,) = xf.memory_report(loss, *args, policies=[]).rows
    compiled = xf.jit(xf.value_and_grad(loss)).lower(*args).compile().memory_analysis()
    assert row.peak_bytes == pytest.approx(compiled.peak_memory_in_bytes, rel=0.21)


# -- per chip -------------------------------------------------------------------------------------


def test_memory_report_per_chip():
    def dense(p, x):
        h = xf.scan(lambda h, w: (torch.tanh(h @ w), None), x, p)[0]
        return h.square().mean()

    weights, x = S(6, 32, 32, spec=P(None, None, "y")), S(64, 32, spec=P("x"))
    report = xf.memory_report(dense, weights, x)
    for row in report.rows:
        assert row.kept_bytes_per_chip is not None
        assert row.peak_per_chip is not None
        assert row.peak_bytes_per_chip is not None
        assert row.kept_bytes_per_chip * 8 <= row.kept_bytes <= row.kept_bytes_per_chip * 8 * 4
        share = 6 * 32 * (32 // 4) * 4 + (64 // 2) * 32 * 4 + 4  # with the cotangent
        assert row.peak_per_chip.arguments == share
        assert row.peak_bytes_per_chip < row.peak_bytes
    assert "peak per chip" in str(report)
    assert "on a chip at its peak" in str(report)


def test_memory_report_of_abstract_large_model():
    config = model.PUBLISHED["llama3.1-405b"]
    where = sharding.Sharding.of({"fsdp": 64, "tensor": 4}, abstract=True)
    plan = Plan(policy="everything", sharding=where)
    recipe = train.Recipe(config, steps=100, plan=plan, precision="bfloat16")
    state, batch = train.abstract_state(recipe), train.abstract_batch(recipe, 64, 4096)

    def loss(params, batch):
        return model.loss(params, batch, config, plan)

    found = rows(loss, state.params, batch, policies={"nothing": cp.nothing_saveable})
    row = found["nothing"]
    assert row.peak_per_chip is not None
    assert row.kept_bytes >= 126 * 64 * 4096 * 16384 * 2  # the input of each layer
    assert row.kept_bytes < found["as written"].kept_bytes
    assert row.peak.arguments > 2 * 405e9 > row.peak_per_chip.arguments * 100


# -- the picture ----------------------------------------------------------------------------------


def test_memory_report_save_picture(tmp_path):
    pytest.importorskip("matplotlib")
    report = xf.memory_report(scanned, S(4, 32), S(6, 32, 32))
    report.save_picture(tmp_path / "memory.png")
    assert (tmp_path / "memory.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match=r"(?s)given .*memory.gif.*ends in .png"):
        report.save_picture(tmp_path / "memory.gif")


def test_memory_report_spans_add_up_to_timeline():
    row = xf.memory_report(plain, SQUARE, SQUARE).rows[0]
    for k, held in enumerate(row.peak.timeline):
        spans = sum(s.held.bytes for s in row.peak.spans if s.start <= k < s.end)
        assert spans + row.peak.arguments == held.bytes


def test_memory_report_save_picture_without_matplotlib(monkeypatch):
    for name in ("matplotlib", "matplotlib.figure", "matplotlib.patches"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"(?s)matplotlib, which is not .*pip install matplotlib"):
        xf.memory_report(plain, SQUARE, SQUARE, policies=[]).save_picture("memory.png")


# -- errors ---------------------------------------------------------------------------------------

ERRORS = {
    "no scalar": (lambda: xf.memory_report(torch.sin, SQUARE), "returned float32.64,64.*sum"),
    "no tensor": (lambda: xf.memory_report(lambda x: (x.sum(), x), SQUARE), "returned a tuple"),
    "complex": (
        lambda: xf.memory_report(lambda x: x.sum() * 1j, SQUARE), "returned complex64.*real",
    ),
    "no arguments": (lambda: xf.memory_report(plain), "no arguments for plain.*pass them"),
    "no function": (lambda: xf.memory_report(NO_FUNCTION, SQUARE), "given 3, which is not call"),
    "integers": (
        lambda: xf.memory_report(lambda x: x.sum() * 0.5, S(2, 4, dtype=torch.int64)),
        "with respect to x, which is int64.2,4., not floating",
    ),
    "no leaves": (lambda: xf.memory_report(lambda a, x: x.sum(), {}, SQUARE), "has no leaves"),
    "no arrays": (lambda: xf.memory_report(plain, SQUARE, "w"), "given 'w' .a str. as w"),
    "one policy": (
        lambda: xf.memory_report(plain, SQUARE, policies=cp.dots_saveable), "a dictionary or",
    ),
    "no policy": (
        lambda: xf.memory_report(plain, SQUARE, SQUARE, policies={"a": "dots"}), "given 'dots' as",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_memory_report_errors(name):
    call, match = ERRORS[name]
    with pytest.raises(TypeError, match=f"(?s){match}"):
        call()


def test_memory_report_min_cut_budget_too_small():
    def f(x, w):
        return xf.scan(lambda h, _: (torch.tanh(h @ w), None), x, length=3)[0].sum()

    with pytest.raises(ValueError, match=r"(?s)budget of 10 bytes.*give budget_bytes="):
        xf.memory_report(f, S(4, 32), S(32, 32), policies=[cp.min_cut(10)])
    assert rows(f, S(4, 32), S(32, 32), policies=[cp.nothing_saveable])["nothing"].kept_bytes
