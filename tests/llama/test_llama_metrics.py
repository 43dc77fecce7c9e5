"""What metrics say about a step besides its loss."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import transformers

import xfunc as xf
from examples.llama import model, train
from examples.llama.hub import hf
from examples.llama.model.plan import Plan


@pytest.mark.parametrize("parts", [1, 2])
def test_language_loss_and_expert_load_match_transformers(parts: int, tmp_path: Path) -> None:
    """Of the whole batch; the router losses are the means of those of its parts."""
    torch.manual_seed(0)
    config = transformers.MixtralConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_local_experts=4,
    )
    theirs = transformers.MixtralForCausalLM(config).eval()
    theirs.save_pretrained(tmp_path)
    windows = torch.randint(64, (4, 17))
    expected = theirs(windows[:, :-1], output_router_logits=True)
    language = F.cross_entropy(expected.logits.flatten(0, 1), windows[:, 1:].flatten())
    loads = []
    for logits in expected.router_logits:
        chosen = logits.topk(config.num_experts_per_tok).indices
        shares = chosen.flatten().bincount(minlength=4) / chosen.numel()
        loads.append(shares.max() / (1 / 4))
    assert max(loads) > 1.1
    routers = []
    for i in range(parts):
        part = theirs(windows[i::parts, :-1], output_router_logits=True)
        sizes = [logits.logsumexp(-1).square().mean() for logits in part.router_logits]
        routers.append(0.5 * part.aux_loss + 0.5 * torch.stack(sizes).mean())
    whole = (language + torch.stack(routers).mean()).detach()

    ours, params = hf.load(tmp_path)
    plan = Plan(attention="dense", microbatches=parts)
    recipe = train.Recipe(ours, 10, plan, warmup=1, router_balance=0.5, router_size=0.5)
    state = train.start(recipe, params)
    _, metrics = train.train_step(state, model.batch_of(windows), recipe=recipe)
    found = xf.device_get(metrics.details)
    assert [*found] == ["language_loss", "expert_load"]
    torch.testing.assert_close(found["language_loss"], language.detach(), rtol=1e-5, atol=0.0)
    torch.testing.assert_close(found["expert_load"], max(loads), rtol=1e-6, atol=0.0)
    torch.testing.assert_close(metrics.loss.cpu(), whole, rtol=1e-5, atol=0.0)
