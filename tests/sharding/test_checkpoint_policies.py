"""Checkpoint policies on a mesh: equal gradients, collectives, memory reports."""

import pytest
import torch

import xfunc as xf
from xfunc import NamedSharding, P
from xfunc import checkpoint_policies as cp

MESH = xf.make_mesh((4, 2), ("x", "y"))
POLICIES = {
    "nothing": cp.nothing_saveable,
    "dots": cp.dots_saveable,
    "names": cp.save_only_these_names("h"),
    "min cut": cp.min_cut(),
    "a budget": cp.min_cut(3 * 16 * 8 * 4),
}


def on(*entries):
    return NamedSharding(MESH, P(*entries))


@pytest.mark.parametrize("name", POLICIES)
def test_checkpoint_policy_gradients_on_a_mesh(name):
    w = xf.device_put(torch.randn(3, 8, 8), on(None, "x", "y"))
    x = xf.device_put(torch.randn(16, 8), on("x"))

    def loss(w, x, policy):
        def layer(h, w):
            h = xf.with_sharding_constraint(h, on("x"))
            return xf.checkpoint_name(torch.tanh(torch.tanh(h @ w) @ w.T), "h"), None

        return xf.scan(layer, x, w, checkpoint_policy=policy)[0].square().sum()

    got, want = (
        xf.grad(lambda w, x, p=p: loss(w, x, p))(w, x)
        for p in (POLICIES[name], cp.everything_saveable)
    )
    torch.testing.assert_close(got.cpu(), want.cpu(), rtol=2e-6, atol=2e-6)  # other fusions
    assert xf.sharding_of(got) == on(None, "x", "y")


def test_checkpoint_recomputation_survives_compilation():
    def f(x, w):
        return torch.tanh(torch.tanh(torch.tanh(x @ w) @ w) @ w).sum()

    x = xf.ShapeDtypeStruct((16, 8), torch.float32, on("x"))
    w = xf.ShapeDtypeStruct((8, 8), torch.float32, on("x", "y"))
    for policy, tanhs in ((cp.everything_saveable, 3), (cp.nothing_saveable, 6)):
        g = xf.jit(xf.value_and_grad(xf.checkpoint(f, policy=policy), argnums=1))
        text = g.lower(x, w).compile().as_text()
        assert text is not None
        assert text.count(" tanh(") == tanhs


@pytest.mark.parametrize("name", POLICIES)
def test_checkpoint_policy_decides_on_collectives(name):
    """Inside of a region, and around it; JAX repeats them under the same policies. A minimum cut
    keeps what was sent.
    """

    def count(f):
        text = xf.jit(xf.value_and_grad(f)).lower(torch.ones(8, 8)).as_text()
        return text.count(" all-reduce(")

    def local(policy):
        def f(a):
            def layer(a):
                return torch.sin(torch.sin(xf.psum(torch.sin(a), "x")))

            return xf.psum(xf.checkpoint(layer, policy=policy)(a).sum(), ("x", "y"))

        return xf.shard_map(f, mesh=MESH, in_specs=P("x", "y"), out_specs=P())

    def around(policy):
        f = xf.shard_map(
            lambda a: torch.sin(xf.psum(torch.sin(a), "x")),
            mesh=MESH,
            in_specs=P("x", "y"),
            out_specs=P(None, "y"),
        )
        return lambda a: xf.checkpoint(lambda b: f(torch.sin(b)), policy=policy)(a).sum()

    repeated = int("cut" not in name and "budget" not in name)
    for make in (local, around):
        assert count(make(POLICIES[name])) == count(make(cp.everything_saveable)) + repeated


def test_memory_report_of_sharded_tensors():
    mesh = xf.make_mesh((4, 2), ("x", "y"))
    x = xf.device_put(torch.ones(64, 32), NamedSharding(mesh, P("x")))
    w = xf.device_put(torch.ones(32, 32), NamedSharding(mesh, P(None, "y")))
    row = xf.memory_report(lambda w, x: torch.tanh(x @ w).sum(), w, x, policies=[]).rows[0]
    assert row.kept_bytes == 64 * 32 * 4
    assert row.kept_bytes_per_chip == row.kept_bytes // 8
