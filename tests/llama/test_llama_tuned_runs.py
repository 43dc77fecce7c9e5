"""Fine-tuning from end to end: on answers, with adapters, on pairs; what is exported."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers

import xfunc as xf
from examples.llama import config, model, train
from examples.llama.checkpoint import trained_weights
from examples.llama.config import Run
from examples.llama.data.reader import DataChangedError, Reader
from examples.llama.hub import hf
from examples.llama.model import IGNORE, Batch
from examples.llama.model.plan import Plan
from examples.llama.train import fit
from examples.llama.tune import lora, preference
from tests.llama import tuned
from tests.llama.tuned import SIZES, TEMPLATE


@pytest.fixture
def begun(made: Path, tmp_path: Path) -> Callable[..., Run]:
    """A run that was imported, and has made no step."""

    def make(name: str, kind: str, *pairs: str) -> Run:
        return tuned.begin(made, tmp_path / name, kind, *pairs)

    return make


def test_export_published_changes_trained_weights_only(
    begun: Callable[..., Run], made: Path, tmp_path: Path
) -> None:
    """Merged, the adapters change their weights alone; transformers finds the same answer."""
    run = begun("a", "adapters")
    fit.fit(run)
    found = trained_weights.load(Path(run.folder))
    trained_weights.export_published(found, tmp_path / "out")
    _, before = hf.load(made / "hub")
    _, after = hf.load(tmp_path / "out")
    roles = lora.named(lora.roles(SIZES, run.train.tune))
    for name, weight in lora.named(before).items():
        assert torch.equal(weight, lora.named(after)[name]) == (roles[name] == lora.FROZEN)
    assert (tmp_path / "out" / "chat_template.jinja").read_text() == TEMPLATE
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    text = theirs.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False)
    assert text == "<|begin_of_text|>user: x<|end_of_text|>"
    other = config.read(Path(run.folder, "config.yaml"), ["data.kind=pairs", "train.steps=7"])
    with pytest.raises(ValueError, match="has no 'prompt'; its fields are messages"):
        fit.fit(other)
    pairs = config.read(
        Path(run.folder, "config.yaml"),
        ["data.kind=pairs", "train.steps=7", f"data.files={made / 'pairs.jsonl'}"],
    )
    with pytest.raises(DataChangedError, match="kind was chat, is pairs; text was "):
        fit.fit(pairs)


# -- pairs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["dpo", "orpo"])
def test_preference_loss_matches_torch(kind: str, tmp_path: Path) -> None:
    """Of packed pairs, against one answer at a time in transformers' model, with gradients."""
    generator = torch.Generator().manual_seed(0)
    folders, params = [tmp_path / "policy", tmp_path / "reference"], []
    for seed, folder in enumerate(folders):
        with xf.disable_jit():
            params.append(model.init(SIZES, seed))
        hf.save(folder, SIZES, params[-1])
    load: Any = transformers.LlamaForCausalLM.from_pretrained
    policy, reference = (load(folder, dtype=torch.float32) for folder in folders)
    rows = [[(3, 4, 6), (2, 5, 2)], [(1, 1, 1)], []]  # prompt, chosen, rejected
    tokens, segments = (torch.zeros(3, 32, dtype=torch.int64) for _ in range(2))
    targets, beta = torch.full((3, 32), IGNORE), 0.3
    margins, losses = [], []

    def log_probability(theirs: Any, text: torch.Tensor, prompt: int) -> torch.Tensor:
        found = theirs(text[None]).logits[0].log_softmax(-1)
        return found[:-1].gather(1, text[1:, None])[prompt - 1 :].sum()

    for row, pairs in enumerate(rows):
        at = number = 0
        for prompt, *answers in pairs:
            begin = torch.randint(SIZES.vocab, (prompt,), generator=generator)
            ratios, means, odds = [], [], []
            for size in answers:
                answer = torch.randint(SIZES.vocab, (size,), generator=generator)
                text, number = torch.cat([begin, answer]), number + 1
                end = at + prompt + size
                tokens[row, at:end], segments[row, at:end] = text, number
                targets[row, at + prompt - 1 : end - 1] = answer
                at = end
                with torch.no_grad():
                    before = log_probability(reference, text, prompt)
                after = log_probability(policy, text, prompt)
                ratios.append(beta * (after - before))
                means.append(after / size)
                odds.append(means[-1].exp() / (1 - means[-1].exp()))
            if kind == "dpo":
                margins.append(ratios[0] - ratios[1])
                losses.append(-F.logsigmoid(margins[-1]))
            else:
                margins.append((odds[0] / odds[1]).log())
                losses.append(-means[0] - beta * margins[-1].sigmoid().log())
    margins, expected = torch.stack(margins), torch.stack(losses).sum()
    expected.backward()
    batch, plan = Batch(tokens, targets, segments), Plan(attention="dense")
    assert preference.pair_count(batch) == 3

    def sums(params: Any, reference: Any, batch: Batch) -> Any:
        if kind == "dpo":
            found = preference.dpo(params, reference, batch, SIZES, plan, beta)
        else:
            found = preference.orpo(params, batch, SIZES, plan, beta)
        return found.loss, found

    (_, found), grads = xf.jit(xf.value_and_grad(sums, has_aux=True))(params[0], params[1], batch)
    torch.testing.assert_close(found.loss.cpu(), expected.detach(), rtol=1e-5, atol=0.0)
    torch.testing.assert_close(found.margin.cpu(), margins.detach().sum(), rtol=1e-4, atol=1e-6)
    assert found.correct == (margins > 0).sum()
    assert 0 < found.correct < 3
    for ours, theirs in (
        (grads["layers"]["wq"][0], policy.model.layers[0].self_attn.q_proj.weight),
        (grads["embed"], policy.model.embed_tokens.weight),
    ):
        torch.testing.assert_close(ours.cpu(), theirs.grad, rtol=1e-3, atol=1e-6)


def test_preference_gradient_of_microbatches_adds_up(made: Path, begun: Callable[..., Run]) -> None:
    run = begun("a", "pairs")
    found = trained_weights.load(Path(run.folder))
    recipe = found.recipe
    batch = Reader(run.data, run.folder, 290).batch(0)
    plan = dataclasses.replace(recipe.plan, sharding=None)
    weights = xf.device_get((found.params, found.base))
    with xf.disable_jit():
        whole, added = (
            train.gradient(
                weights[0],
                batch,
                dataclasses.replace(recipe, plan=dataclasses.replace(plan, microbatches=parts)),
                weights[1],
            )
            for parts in (1, 2)
        )
    xf.tree.map(lambda a, b: torch.testing.assert_close(a, b), whole, added)


def test_orpo_needs_no_base(begun: Callable[..., Run]) -> None:
    run = begun("a", "pairs-full", "data.batch=8", "train.preference=orpo")
    recipe = run.recipe(1)
    assert not recipe.has_base
    assert not recipe.extent.compared
    fit.fit(run)
    text = Path(run.folder, "metrics.jsonl").read_text()
    first, *_, last = (line for line in map(json.loads, text.splitlines()) if "loss" in line)
    assert last["loss"] < first["loss"] - 0.5
    assert last["margin"] > first["margin"] + 0.5
    assert last["accuracy"] == 1.0
    with pytest.raises(ValueError, match="dpo_beta: not for preference orpo"):
        config.read(pairs=["train.preference=orpo", "train.dpo_beta=0.2"])
    with pytest.raises(ValueError, match=r"train\.preference is 'ipo': did you mean dpo"):
        config.read(pairs=["train.preference=ipo"])


def test_orpo_of_certain_answers_is_finite() -> None:
    """Where a probability is 1 its odds are infinite; torch's gradient would not be finite."""
    p = torch.tensor([0.0, -1e-3], requires_grad=True)
    preference.log_odds(p).sum().backward()
    assert p.grad is not None
    assert p.grad.isfinite().all()


def test_margin_and_accuracy_in_metrics(begun: Callable[..., Run]) -> None:
    """At first the model is its base; after a few steps it prefers the same answers as the data."""
    run = begun("a", "pairs", "data.batch=8")
    fit.fit(run)
    text = Path(run.folder, "metrics.jsonl").read_text()
    first, *_, last = (line for line in map(json.loads, text.splitlines()) if "loss" in line)
    assert (first["margin"], first["accuracy"]) == (0.0, 0.0)
    assert last["margin"] > 0
    assert last["accuracy"] == 1.0
