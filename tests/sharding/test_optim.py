"""The state of `xf.optim`'s optimizers lies on a mesh as the weights do."""

import os
from typing import Any

import pytest
import torch

import xfunc as xf
from xfunc import NamedSharding, P, optim

MESH = xf.make_mesh((4, 2), ("x", "y"))
SPECS = {"w": P("x", "y"), "stack": P(None, "y", "x"), "b": P("x")}
SHARDINGS = {name: NamedSharding(MESH, spec) for name, spec in SPECS.items()}
PARAMS = {"w": torch.randn(8, 6), "stack": torch.randn(3, 4, 8), "b": torch.randn(4)}
DECAYED = {"w": True, "stack": True, "b": False}
OPTIMIZERS = {
    "sgd": optim.sgd(0.1, momentum=0.9),
    "adamw": optim.adamw(optim.linear_schedule(0.1, 0.0, 9), mask=DECAYED),
    "lion": optim.lion(0.1),
    "adafactor": optim.adafactor(0.1, min_dim_size_to_factor=4),
    "muon": optim.muon(0.1, muon_mask=DECAYED, ns_dtype=None),
    "multi_steps": optim.multi_steps(
        optim.chain(optim.clip_by_global_norm(1.0), optim.adam(0.1)), 2
    ),
}


def step(opt: optim.GradientTransformation, params: Any, state: Any, n: Any) -> Any:
    grads = xf.tree.map(lambda p: torch.cos(p * (n + 1)), params)
    updates, state = opt.update(grads, state, params)
    return optim.apply_updates(params, updates), state


def spec_like_weight(path: str, leaf: torch.Tensor) -> P:
    """The spec that a leaf of a state has: that of its weight, without the dimension of a mean."""
    name = next((name for name in SPECS if path.endswith(f"['{name}']")), None)
    if name is None or leaf.shape == (1,):
        return P()
    spec, whole = SPECS[name], PARAMS[name].shape
    if leaf.shape == whole:
        return spec
    return P(*(spec[:-1] if "v_row" in path else (*spec[:-2], spec[-1])))


def shardings_of_state(opt: optim.GradientTransformation) -> Any:
    return xf.tree.map_with_path(
        lambda path, leaf: NamedSharding(MESH, spec_like_weight(path, leaf)),
        xf.eval_shape(opt.init, PARAMS),
    )


# The XLA of torch_xla follows the first of several ties of a weight only.
@pytest.mark.skipif(os.environ.get("XFUNC_BACKEND") == "torch_xla", reason="needs a newer XLA")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_init_shards_the_state_like_the_weights(name: str) -> None:
    state = xf.jit(OPTIMIZERS[name].init)(xf.device_put(PARAMS, SHARDINGS))
    assert xf.tree.map(xf.sharding_of, state) == shardings_of_state(OPTIMIZERS[name])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_sharded_updates_equal_one_device(name: str) -> None:
    opt = OPTIMIZERS[name]
    shardings = shardings_of_state(opt)
    params = xf.device_put(PARAMS, SHARDINGS)
    state = xf.jit(opt.init, out_shardings=shardings)(params)
    train = xf.jit(
        lambda params, state, n: step(opt, params, state, n),
        in_shardings=(SHARDINGS, shardings, None),
        out_shardings=(SHARDINGS, shardings),
        donate_argnums=(0, 1),
    )
    plain, plain_state = PARAMS, opt.init(PARAMS)
    for n in range(3):
        params, state = train(params, state, float(n))
        plain, plain_state = step(opt, plain, plain_state, float(n))
    assert xf.tree.map(xf.sharding_of, (params, state)) == (SHARDINGS, shardings)
    for ours, expected in zip(
        xf.tree.leaves((params, state)), xf.tree.leaves((plain, plain_state)), strict=True
    ):
        torch.testing.assert_close(ours.cpu(), expected.cpu(), rtol=1e-4, atol=1e-4)
