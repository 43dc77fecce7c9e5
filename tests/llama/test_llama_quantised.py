"""A frozen base in 4 bits: its codes, products, training and export."""

import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from bitsandbytes import functional

import xfunc as xf
from examples.llama import config, model, train
from examples.llama.checkpoint import trained_weights
from examples.llama.hub import hf
from examples.llama.model import linear, quantised
from examples.llama.model.plan import Plan
from examples.llama.model.sizes import Experts
from examples.llama.options import SettingError
from examples.llama.parallel.sharding import Sharding
from examples.llama.train import fit
from examples.llama.train.train_config import Recipe
from examples.llama.tune import base_weights, lora
from tests.llama import tuned
from tests.llama.tuned import SIZES
from xfunc import P


def in_nf4(weight: torch.Tensor) -> torch.Tensor:
    """A matrix as bitsandbytes quantises it to NF4."""
    made = functional.quantize_4bit(weight, blocksize=64, quant_type="nf4")
    return functional.dequantize_4bit(*made)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nf4_matches_bitsandbytes(dtype: torch.dtype) -> None:
    """To the bit, also in a stack and in a block of zeros."""
    stack = torch.randn(3, 6, 192, generator=torch.Generator().manual_seed(0)).to(dtype)
    stack[1, 2, 64:128] = 0.0
    found = quantised.nf4(stack)
    assert found.shape == stack.shape
    assert found.codes.nbytes + found.scale.nbytes == stack.numel() * 4.5 / 8
    assert len(found.codes.unique()) > 200
    made = xf.jit(lambda weight: weight.plain().to(dtype))(found).cpu()
    assert torch.equal(made, torch.stack([in_nf4(matrix) for matrix in stack]))


def test_quantised_scale_keeps_nan_and_infinity() -> None:
    for bad in (float("nan"), float("inf")):
        weight = torch.ones(2, 128)
        weight[1, 70] = bad
        first, second = quantised.nf4(weight).scale.T
        assert first.isfinite().all()
        assert not second.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_linear_of_codes_matches_rounded_weight(dtype: torch.dtype) -> None:
    """The derivative by `x` too; with an adapter as well."""
    draw = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(3, 128, generator=draw), torch.randn(6, 128, generator=draw))
    down, up = torch.randn(2, 128, generator=draw), torch.randn(6, 2, generator=draw)
    x, down, up = (t.to(dtype) for t in (x, down, up))
    codes = quantised.nf4(weight)
    alike = in_nf4(weight).double()
    theirs = x.double().requires_grad_()
    whole = alike + up.double() @ down.double()
    for used, matrix in (
        (codes, alike),
        (linear.Adapted(codes, down, up), whole),
    ):
        expected = F.linear(theirs, matrix)
        (grad,) = torch.autograd.grad(expected.square().sum(), theirs)
        made, ours = xf.jit(
            lambda x, used: (
                linear.linear(x, used),
                xf.grad(lambda x: linear.linear(x, used).float().square().sum())(x),
            )
        )(x, used)
        assert made.dtype == dtype
        rough = 1e-5 if dtype == torch.float32 else 3e-2
        for got, want in ((made, expected.detach()), (ours, grad)):
            torch.testing.assert_close(
                got.cpu().double(), want, rtol=rough, atol=rough * float(want.abs().max())
            )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["adapters", "pairs"])
def test_fit_on_quantised_base_matches_rounded_base(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    """Each loss, with a base in float32 whose frozen matrices were rounded by a library."""
    run = tuned.begin(made, tmp_path / "nf4", kind, "train.tune.base=nf4")
    found = trained_weights.load(Path(run.folder))
    assert found.base is not None
    named = lora.named(found.base)
    roles = lora.named(lora.roles(SIZES, run.train.tune))
    codes = {name for name, leaf in named.items() if quantised.is_quantised(leaf)}
    matrices = {name for name in named if name.startswith("layers.w")} | {"head"}
    assert codes == {name for name in matrices if roles[name] != lora.FULL}
    sizes = {name: sum(x.nbytes for x in xf.tree.leaves(leaf)) for name, leaf in named.items()}
    assert sizes["layers.wq"] == SIZES.layers * 64 * (64 / 2 + 4)

    params, weights = hf.load(made / "hub")[1], {}
    for name, leaf in lora.named(params).items():
        stack = leaf if leaf.ndim == 3 else leaf[None]
        alike = torch.stack([in_nf4(matrix) for matrix in stack]) if name in codes else stack
        weights[name] = alike.view(leaf.shape)
    hf.save(tmp_path / "hub", SIZES, lora.nested(weights), made)
    folder = tmp_path / "alike"
    folder.mkdir()
    for name in ("chat.jsonl", "pairs.jsonl"):
        (folder / name).write_bytes((made / name).read_bytes())
    (tmp_path / "hub").rename(folder / "hub")
    plain = tuned.begin(folder, tmp_path / "float32", kind)
    said = []
    for each in (run, plain):
        assert fit.fit(each).ended == "done"
        said.append(capsys.readouterr().out.splitlines()[:3])
    counts = [[line for line in lines if "on a frozen base of" in line] for lines in said]
    assert counts[0] == counts[1] != []
    ours, theirs = (
        [line["loss"] for line in tuned.curve(each.folder) if "loss" in line]
        for each in (run, plain)
    )
    assert ours == pytest.approx(theirs, abs=1e-4)
    assert ours[-1] < ours[0]
    exported, expected = (
        lora.named(xf.device_get(trained_weights.load(Path(each.folder)).whole()))
        for each in (run, plain)
    )
    for name, weight in exported.items():
        torch.testing.assert_close(weight, expected[name], rtol=1e-3, atol=2e-4)


@pytest.mark.slow
@pytest.mark.parametrize("adapted", ["layers.w*", "layers.e_*"])
def test_fit_with_quantised_experts_matches_rounded_experts(
    made: Path, tmp_path: Path, adapted: str
) -> None:
    """Losses beside experts in codes, or on them, are those with experts that a library rounded."""
    sizes = dataclasses.replace(SIZES, family="qwen3_moe", experts=Experts(4, 2, 64))
    params = lora.named(xf.device_get(model.init(sizes, 7)))
    matrices = {name for name in params if name.startswith(("layers.e_", "layers.w"))} | {"head"}
    alike = params | {name: params[name].clone() for name in matrices}
    for name in matrices:
        for matrix in alike[name].view(-1, *params[name].shape[-2:]):
            matrix.copy_(in_nf4(matrix))
    losses = []
    for which, weights in {"nf4": params, "null": alike}.items():
        folder = tmp_path / which
        hf.save(folder / "hub", sizes, lora.nested(weights), made)
        (folder / "chat.jsonl").write_bytes((made / "chat.jsonl").read_bytes())
        more = f"train.tune.base={which}", f"train.tune.lora={adapted}", "train.router_balance=0.1"
        run = tuned.begin(folder, folder / "run", "answers", *more)
        base = trained_weights.load(Path(run.folder)).base
        assert base is not None
        codes = {name for name, leaf in lora.named(base).items() if quantised.is_quantised(leaf)}
        assert codes == (matrices if which == "nf4" else set())
        assert fit.fit(run).ended == "done"
        losses.append([x["loss"] for x in tuned.curve(run.folder) if "loss" in x])
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)
    assert losses[0][-1] < losses[0][0]


def test_tune_base_wrong_or_changed_raises(made: Path, tmp_path: Path) -> None:
    run = tuned.begin(made, tmp_path / "run", "quantised", "train.steps=2")
    fit.fit(run)
    with pytest.raises(SettingError, match=r"train\.tune\.base was nf4, is None"):
        fit.fit(config.read(tmp_path / "run" / "config.yaml", ["train.tune.base=null"]))
    with pytest.raises(ValueError, match="tune: base is nf4, but no weight is frozen"):
        tuned.begin(made, tmp_path / "b", "pairs-full", "train.tune.base=nf4")
    with pytest.raises(SettingError, match=r"train\.tune\.base"):
        tuned.begin(made, tmp_path / "c", "adapters", "train.tune.base=int4")


def test_abstract_base_matches_loaded_base(made: Path, tmp_path: Path) -> None:
    """Its shapes, for compiling without it."""
    run = tuned.begin(made, tmp_path / "run", "adapters", "train.tune.base=nf4")
    recipe: Any = run.recipe(1)
    described, real = train.abstract_base(recipe), base_weights.load(run, recipe)

    def check(expected: xf.ShapeDtypeStruct, leaf: torch.Tensor) -> None:
        assert (tuple(leaf.shape), leaf.dtype) == (tuple(expected.shape), expected.dtype)

    xf.tree.map(check, described, real)


def test_codes_are_sharded_like_their_weights() -> None:
    """As far as sizes permit: 1792 inputs are 28 blocks, for 8 devices."""
    sizes = model.Config(290, 1024, 1792, layers=2, heads=4, kv_heads=2)
    plan = Plan(sharding=Sharding.of({"fsdp": 4, "tensor": 8}, abstract=True))
    recipe = Recipe(sizes, 10, plan, tune=lora.Tune(("layers.wq",), base="nf4"))
    base = train.abstract_base(recipe)
    assert base is not None
    parts = ("fsdp", "expert", "context")
    found = {n: [a.sharding.spec for a in leaf] for n, leaf in base["layers"].items() if "w" in n}
    assert found["wq"] == [P(None, parts, "tensor"), P(None, parts, "tensor")]
    assert found["w_down"] == [P(None, "tensor", parts), P(None, None, parts)]


@pytest.mark.sample(4, seed=0)
@pytest.mark.parametrize("policy", ["dots", "everything"])
@pytest.mark.parametrize("experts", [None, Experts(4, 2, 320)])
def test_train_step_stores_no_dequantised_weights(policy: str, experts: Experts | None) -> None:
    """They would be the whole base, in the dtype of the arithmetic."""
    family, stack = ("llama", "2") if experts is None else ("qwen3_moe", "2,4")
    sizes = model.Config(
        64, 192, 320, layers=2, heads=2, kv_heads=2, family=family, experts=experts
    )
    names = ("layers.w*",) if experts is None else ("layers.w*", "layers.e_*")
    tune = lora.Tune(names, base="nf4")
    recipe = Recipe(sizes, 100, Plan(policy, "dense", sharding=Sharding.of({})), tune=tune)
    state, base = train.abstract_state(recipe), train.abstract_base(recipe)
    batch = train.abstract_batch(recipe, 2, 16)
    text = train.train_step.lower(state, batch, base, recipe=recipe).as_text()
    assert f"[{stack},96,320]" in text  # codes, of all layers
    assert f"[{stack},320,192]" not in text
    assert f"[{stack},192,320]" not in text


def test_nf4_without_whole_blocks_or_bitsandbytes_raises(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = model.Config(290, 64, 96, layers=1, heads=2, kv_heads=1)
    message = (
        "tune: base is nf4, whose blocks have 64 inputs, but layers.w_down has 96: leave it out"
    )
    with pytest.raises(ValueError, match=message):
        Recipe(sizes, 10, tune=lora.Tune(("layers.wq",), base="nf4"))
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(
        ValueError, match=r"needs bitsandbytes .*: pip install bitsandbytes, or leave"
    ):
        tuned.begin(made, tmp_path / "run", "adapters", "train.tune.base=nf4")
