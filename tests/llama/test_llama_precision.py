"""The precisions of training: small updates add up, and runs are saved, resumed and exported."""

import json
import math
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import xfunc as xf
from examples.llama import __main__ as program
from examples.llama import model, train
from examples.llama.checkpoint.checkpoints import Checkpoints
from examples.llama.config import Run
from examples.llama.model import precision
from examples.llama.model.precision import PRECISIONS
from examples.llama.options import SettingError
from examples.llama.train import fit

NUMBERS = [1.0, -1.0, 1.001, -0.3, 3.14159, 1e-3, -7.7e-20, 2.0**-126, 1.5e38, 255.5, 0.0]
DRAWS = 20000


def test_stochastic_rounding_is_right_in_the_mean() -> None:
    x = torch.tensor(NUMBERS)
    round_all = xf.jit(precision.stochastic)
    rounded = round_all(x.expand(DRAWS, -1), xf.random.key(7)).cpu()
    assert rounded.dtype == torch.bfloat16
    found = rounded.double()
    below, above = (f(0).values for f in (found.min, found.max))
    # Never further than the two neighbours, and what is one of them stays.
    gap = (above - below).clamp(min=0.0)
    assert (gap <= x.double().abs() * 2**-7).all()
    assert ((below <= x) & (x <= above)).all()
    narrow = x.bfloat16().float() == x
    assert (gap[narrow] == 0).all()
    assert (gap[~narrow] > 0).all()
    # Of a draw between two numbers a gap apart the deviation is at most half of it.
    error = (found.mean(0) - x.double()).abs()
    assert (error <= 5 * gap / 2 / math.sqrt(DRAWS)).all()


def test_stochastic_rounding_keeps_nan_and_infinity() -> None:
    x = torch.tensor([math.inf, -math.inf, math.nan])
    found = xf.jit(precision.stochastic)(x, xf.random.key(0))
    torch.testing.assert_close(found.cpu().float(), x, equal_nan=True)


@pytest.mark.parametrize("name", PRECISIONS)
def test_precision_small_updates_add_up(name: str) -> None:
    numbers = PRECISIONS[name]
    ones = torch.linspace(1.0, 1.9, 1000)

    def add(carry: Any, _: None) -> tuple[Any, None]:
        params, step = carry
        wide = xf.tree.map(lambda w: w + 1e-4, numbers.wide(params))
        return (numbers.kept(wide, step), step + 1), None

    @xf.jit
    def after(wide: Any) -> tuple[Any, Any]:
        start = numbers.kept(wide, torch.tensor(0)), torch.tensor(1)
        return start[0], xf.scan(add, start, length=400)[0][0]

    before, params = (tree["w"].cpu() for tree in after({"w": ones}))
    assert params.dtype == numbers.weights
    moved = (params.double() - before.double()).mean().item()
    if name == "bfloat16":
        assert moved == 0.0
    else:
        # At random: 400 roundings of 1000 numbers, of which 1 in 70 goes up, by 2**-7.
        deviation = 2**-7 * math.sqrt(400 / 78 / 1000)
        assert moved == pytest.approx(0.04, abs=4 * deviation)
    if name in ("float32", "mixed"):
        assert (params.double() - before.double() - 0.04).abs().max() < 1e-4


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize("name", PRECISIONS)
def test_gradient_has_the_dtypes_of_the_precision(name: str) -> None:
    recipe = train.Recipe(model.TINY["tiny"], steps=100, precision=name, optimizer="adafactor")
    state = xf.eval_shape(lambda: train.init(recipe))
    kept = {leaf.dtype for leaf in xf.tree.leaves(state.params)}
    assert kept == {PRECISIONS[name].weights}
    assert {leaf.dtype for leaf in xf.tree.leaves(state.opt)} == {torch.int32, torch.float32}

    def gradient(params: Any, tokens: Any) -> Any:
        return train.gradient(params, model.Batch(tokens, tokens), recipe)

    tokens = xf.ShapeDtypeStruct((2, 16), torch.int64)
    text = xf.jit(gradient).lower(state.params, tokens).as_text()
    weights = [line for line in text.splitlines() if " dot(" in line]
    narrow = [line for line in weights if " bf16[" in line]
    assert len(weights) > 10
    assert bool(narrow) == (name != "float32")
    grads = xf.eval_shape(gradient, state.params, tokens).grads
    assert {leaf.dtype for leaf in xf.tree.leaves(grads)} == {PRECISIONS[name].arithmetic}


def test_init_has_the_same_weights_in_every_precision() -> None:
    found = {}
    for name in PRECISIONS:
        recipe = train.Recipe(model.TINY["tiny"], steps=100, precision=name)
        found[name] = xf.device_get(train.init(recipe, 3).params["embed"])
    wide = found["float32"]
    assert torch.equal(found["mixed"], wide)
    assert torch.equal(found["bfloat16"], wide.bfloat16())
    assert (found["stochastic"].float() - wide).abs().max() <= wide.abs().max() * 2**-7


# -- runs -------------------------------------------------------------------------------------


def saved(run: Run) -> Any:
    """The newest state in a run's folder, on the host."""
    target = train.abstract_state(run.recipe(1))
    return xf.device_get(Checkpoints(Path(run.folder, "checkpoints")).restore(target).state)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mixed", "stochastic"])
def test_fit_resume_and_export_in_each_precision(
    name: str,
    settings: Callable[..., list[str]],
    run_of: Callable[..., Run],
    at_step: Callable[..., None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pairs = f"train.precision={name}", "train.optimizer=adafactor"
    whole, parts = run_of("whole", *pairs), run_of("parts", *pairs)
    fit.fit(whole)
    at_step(3, lambda: signal.raise_signal(signal.SIGTERM))
    assert fit.fit(parts).ended == "interrupted"
    assert fit.fit(parts).ended == "done"
    state = saved(whole)
    xf.tree.map(
        lambda a, b: torch.testing.assert_close(a, b, rtol=0.0, atol=0.0), saved(parts), state
    )

    hub, wide = tmp_path / "hub", tmp_path / "wide"
    assert program.main(["export-hf", whole.folder, "--out", str(hub)]) == 0
    assert json.loads((hub / "config.json").read_text())["torch_dtype"] == "bfloat16"
    name_of_norm, norm = "model.norm.weight", state.params["norm"]
    assert torch.equal(load_file(hub / "model.safetensors")[name_of_norm], norm.bfloat16())
    argv = ["export-hf", whole.folder, "--out", str(wide), "--dtype", "float32"]
    assert program.main(argv) == 0
    assert torch.equal(load_file(wide / "model.safetensors")[name_of_norm], norm.float())

    # The same weights, once imported, have the same loss.
    capsys.readouterr()
    tuned = settings("tuned", f"train.precision={name}")
    tuned = [pair for pair in tuned if not pair.startswith("train.model")]
    assert program.main(["import-hf", str(wide), *tuned]) == 0
    losses = []
    for folder in (whole.folder, str(tmp_path / "tuned")):
        capsys.readouterr()
        assert program.main(["eval", folder]) == 0
        losses.append(capsys.readouterr().out.partition("held-out")[2])
    assert losses[0] == losses[1]


@pytest.mark.slow
def test_fit_resume_in_precision_with_same_storage(
    run_of: Callable[..., Run], capsys: pytest.CaptureFixture[str]
) -> None:
    fit.fit(run_of("a", "train.precision=bfloat16", "train.steps=4"))
    assert "bfloat16 loses updates of less than 1/512" in capsys.readouterr().out
    with pytest.raises(
        SettingError, match=r"weights are kept in was torch\.bfloat16, is torch\.float32"
    ):
        fit.fit(run_of("a", "train.precision=mixed"))
    assert fit.fit(run_of("a", "train.precision=stochastic")).step == 8
    assert "loses updates" not in capsys.readouterr().out
