"""A frozen base in 8 bits: what it computes, what is trained on it, what is exported."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import xfunc as xf
from examples.llama import base, config, fit, hf, linear, lora, train, trained
from examples.llama.linear import Quantised
from examples.llama.options import SettingError
from tests.examples import tuned
from tests.examples.tuned import SIZES


def rounded(weight: torch.Tensor) -> torch.Tensor:
    """A matrix as torch quantises it to 8 bits, with a scale for each row."""
    scale = weight.abs().amax(-1) / 127
    scale = torch.where(scale > 0, scale, 1.0)
    made = torch.quantize_per_channel(
        weight, scale.double(), torch.zeros(len(weight), dtype=torch.int64), 0, torch.qint8
    )
    return made.dequantize()


def test_codes_are_those_of_torch() -> None:
    weight = torch.randn(6, 40, generator=torch.Generator().manual_seed(0))
    weight[2], weight[3] = 0.0, weight[3] * 1e-6
    found = xf.device_get(xf.jit(linear.quantised)(weight))
    assert found.codes.dtype == torch.int8
    torch.testing.assert_close(linear.plain(found), rounded(weight), rtol=1e-6, atol=0)
    assert found.codes.abs().amax(-1).tolist() == [127, 127, 0, 127, 127, 127]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_are_those_of_the_rounded_weight(dtype: torch.dtype) -> None:
    """The derivative by `x` too; with an adapter as well."""
    draw = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(3, 40, generator=draw), torch.randn(6, 40, generator=draw))
    down, up = torch.randn(2, 40, generator=draw), torch.randn(6, 2, generator=draw)
    x, down, up = (t.to(dtype) for t in (x, down, up))
    codes = linear.quantised(weight)
    theirs = x.double().requires_grad_()
    whole = rounded(weight).double() + up.double() @ down.double()
    for used, matrix in (
        (codes, rounded(weight).double()),
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


@pytest.mark.parametrize("kind", ["adapters", "pairs"])
def test_training_is_that_on_the_rounded_base(made: Path, tmp_path: Path, kind: str) -> None:
    """Each loss, with a base in float32 whose frozen matrices were rounded by torch."""
    run = tuned.begin(made, tmp_path / "int8", kind, "train.tune.base=int8")
    found = trained.load(Path(run.folder))
    assert found.base is not None
    named = lora.named(found.base)
    roles = lora.named(lora.roles(SIZES, run.train.tune))
    codes = {name for name, leaf in named.items() if isinstance(leaf, Quantised)}
    matrices = {name for name in named if name.startswith("layers.w")} | {"head"}
    assert codes == {name for name in matrices if roles[name] != lora.FULL}
    sizes = {name: sum(x.nbytes for x in xf.tree.leaves(leaf)) for name, leaf in named.items()}
    assert sizes["layers.wq"] == SIZES.layers * 32 * (32 + 4)

    params, weights = hf.load(made / "hub")[1], {}
    for name, leaf in lora.named(params).items():
        stack = leaf if leaf.ndim == 3 else leaf[None]
        alike = torch.stack([rounded(matrix) for matrix in stack]) if name in codes else stack
        weights[name] = alike.view(leaf.shape)
    hf.save(tmp_path / "hub", SIZES, lora.nested(weights), made)
    folder = tmp_path / "alike"
    folder.mkdir()
    for name in ("chat.jsonl", "pairs.jsonl"):
        (folder / name).write_bytes((made / name).read_bytes())
    (tmp_path / "hub").rename(folder / "hub")
    plain = tuned.begin(folder, tmp_path / "float32", kind)
    for each in (run, plain):
        assert fit.fit(each).ended == "done"
    ours, theirs = (
        [line["loss"] for line in tuned.curve(each.folder) if "loss" in line]
        for each in (run, plain)
    )
    assert ours == pytest.approx(theirs, abs=1e-4)
    exported, expected = (
        lora.named(xf.device_get(trained.load(Path(each.folder)).whole())) for each in (run, plain)
    )
    for name, weight in exported.items():
        torch.testing.assert_close(weight, expected[name], rtol=1e-3, atol=2e-4)


def test_what_the_base_is_kept_in_is_a_setting_of_the_run(made: Path, tmp_path: Path) -> None:
    run = tuned.begin(made, tmp_path / "run", "quantised", "train.steps=2")
    fit.fit(run)
    with pytest.raises(SettingError, match=r"train\.tune\.base was int8, is None"):
        fit.fit(config.read(tmp_path / "run" / "config.yaml", ["train.tune.base=null"]))
    with pytest.raises(ValueError, match="tune: base is int8, but no weight is frozen"):
        tuned.begin(made, tmp_path / "b", "pairs-full", "train.tune.base=int8")
    with pytest.raises(SettingError, match=r"train\.tune\.base"):
        tuned.begin(made, tmp_path / "c", "adapters", "train.tune.base=int4")


def test_a_described_base_is_the_one_that_is_made(made: Path, tmp_path: Path) -> None:
    """Its shapes, for compiling without it."""
    run = tuned.begin(made, tmp_path / "run", "adapters", "train.tune.base=int8")
    recipe: Any = run.recipe(1)
    described, real = train.abstract_base(recipe), base.load(run, recipe)

    def check(expected: xf.ShapeDtypeStruct, leaf: torch.Tensor) -> None:
        assert (tuple(leaf.shape), leaf.dtype) == (tuple(expected.shape), expected.dtype)

    xf.tree.map(check, described, real)
