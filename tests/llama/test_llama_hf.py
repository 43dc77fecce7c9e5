"""The model against Hugging Face's: logits, losses, gradients, rotary angles, tokens."""

import dataclasses
import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import xfunc as xf
from examples.llama import model
from examples.llama.hub import hf
from examples.llama.model import generate
from tests.llama.hugging_face import (
    CONFIGS,
    SEQ,
    assert_near,
    by_hub_name,
    random_params,
    theirs,
    tokens_of,
)


def test_model_matches_transformers_in_float64(config: model.Config, folder: Path) -> None:
    """Given the same rotary tables, which both find in float32, nothing is left but rounding."""
    params = random_params(config, torch.float64)
    hf.save(folder, config, params)
    reference = theirs(folder, torch.float64)
    windows = tokens_of(config)
    batch = model.batch_of(windows)
    cos, sin = model.rotary(torch.arange(SEQ), config)
    tables = cos[None].double(), sin[None].double()
    reference.model.rotary_emb.forward = lambda *_args, **_kwargs: tables
    logits = reference(batch.tokens).logits
    loss = F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())
    loss.backward()

    with xf.disable_jit():
        ours = model.forward(params, batch.tokens, config)
        our_loss, grads = xf.value_and_grad(model.loss)(params, batch, config)
    assert_near(ours, logits.detach(), 1e-12)
    assert_near(our_loss, loss.detach(), 1e-12)
    found = by_hub_name(config, grads)
    for name, parameter in reference.named_parameters():
        assert_near(found.pop(name), parameter.grad, 1e-9)
    assert not found


@pytest.mark.sample(6, seed=0)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 2e-6), (torch.float32, 2e-5)])
def test_model_compiled_matches_transformers(
    config: model.Config, folder: Path, dtype: torch.dtype, tolerance: float
) -> None:
    """They find norms, softmax, rotary tables and the loss in float32, whatever the weights are."""
    params = random_params(config, dtype)
    hf.save(folder, config, params)
    reference = theirs(folder, dtype, attention="eager")
    windows = tokens_of(config)
    expected = reference(windows, labels=windows)
    expected.loss.backward()

    @xf.jit
    def run(params: Any, windows: Any) -> Any:
        batch = model.batch_of(windows)
        logits = model.forward(params, batch.tokens, config)
        return logits, xf.value_and_grad(model.loss)(params, batch, config)

    logits, (loss, grads) = xf.device_get(run(params, windows))
    assert logits.dtype == dtype
    assert_near(logits, expected.logits[:, :-1].detach(), tolerance)
    assert_near(loss, expected.loss.detach(), tolerance)
    found = by_hub_name(config, grads)
    for name, parameter in reference.named_parameters():
        assert_near(found.pop(name), parameter.grad, tolerance)
    assert not found


@pytest.mark.parametrize("name", [*CONFIGS, *model.PUBLISHED])
def test_rotary_frequencies_match_transformers(name: str) -> None:
    import transformers

    config = (CONFIGS | model.PUBLISHED)[name]
    fields = hf.config_json(config, torch.float32, context=131072)
    settings = transformers.AutoConfig.for_model(**fields)
    modules = importlib.import_module(
        f"transformers.models.{config.family}.modeling_{config.family}"
    )
    [rotary] = [name for name in vars(modules) if name.endswith("RotaryEmbedding")]
    expected = getattr(modules, rotary)(settings).inv_freq
    cos, sin = model.rotary(torch.tensor([1]), config)
    torch.testing.assert_close(torch.atan2(sin, cos)[0], expected.repeat(2), rtol=1e-6, atol=0.0)


def test_rope_scaling_changes_logits_at_tested_length(config: model.Config) -> None:
    plain = dataclasses.replace(config, rope_scaling=None)
    with xf.disable_jit():
        params, tokens = random_params(config), tokens_of(config)
        with_it, without = (model.forward(params, tokens, c) for c in (config, plain))
    difference = (with_it - without).abs().max()
    assert (difference > 0.01) == (config.rope_scaling is not None)


@pytest.mark.sample(2, seed=0)
def test_generate_greedy_tokens_match_transformers(config: model.Config, folder: Path) -> None:
    params = random_params(config, torch.float64)
    hf.save(folder, config, params)
    lengths = torch.tensor([9, 5, 1])
    prompt, mask = tokens_of(config, 3, 9), torch.arange(9) >= 9 - lengths[:, None]
    settings = {"do_sample": False, "max_new_tokens": 12, "pad_token_id": 0}
    expected = theirs(folder, torch.float64).generate(
        prompt * mask, attention_mask=mask.long(), **settings
    )
    found = generate.generate(params, prompt * mask, config=config, new=12, lengths=lengths)
    assert xf.device_get(found).tolist() == expected[:, 9:].tolist()
