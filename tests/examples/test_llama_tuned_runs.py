"""Fine-tuning from end to end: on answers, with adapters, on pairs; killed, damaged, exported."""

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers

import xfunc as xf
from examples.llama import config, fit, hf, lora, model, preference, tokenizer, train, trained
from examples.llama.checkpoints import Checkpoints
from examples.llama.config import Run
from examples.llama.model import IGNORE, Batch
from examples.llama.plan import Plan
from examples.llama.reader import DataChangedError, Reader
from examples.llama.restored import restore

SIZES = model.Config(290, 32, 48, layers=1, heads=2, kv_heads=1)
TEMPLATE = (
    "{% for m in messages %}<|begin_of_text|>{{ m.role }}: {{ m.content }}<|end_of_text|>"
    "{% endfor %}{% if add_generation_prompt %}<|begin_of_text|>assistant: {% endif %}"
)
KINDS = {
    "answers": ("chat", "train.optimizer=adamw"),
    "adapters": ("chat", "train.tune.lora=[layers.w*] train.tune.full=[norm]"),
    "pairs": ("pairs", "train.tune.lora=[layers.wq,head] train.tune.rank_stabilised=true"),
    "pairs-full": ("pairs", "train.precision=mixed"),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random model, conversations and pairs."""
    folder = tmp_path_factory.mktemp("made")
    tokenizer.train(["yes and no and the rest of it " * 20], SIZES.vocab, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    with xf.disable_jit():
        hf.save(folder / "hub", SIZES, model.init(SIZES, 7), folder)
    chat, pairs = [], []
    for i in range(24):
        asked = [{"role": "user", "content": f"is it {i}?"}]
        yes, no = ([{"role": "assistant", "content": text}] for text in ("yes " * 3, "no"))
        chat.append({"messages": asked + (yes if i % 2 else no)})
        pairs.append({"prompt": asked, "chosen": yes, "rejected": no})
    for name, records in (("chat", chat), ("pairs", pairs)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    return folder


@pytest.fixture
def begun(made: Path, tmp_path: Path) -> Callable[..., Run]:
    """A run that was imported, and has made no step."""

    def make(name: str, kind: str, *pairs: str) -> Run:
        data, tune = KINDS[kind]
        settings = (
            f"folder={tmp_path / name} data.kind={data} data.files={made / data}.jsonl {tune} "
            "data.batch=4 data.seq=96 train.steps=6 train.warmup=1 train.peak_lr=1e-2 save_every=2 "
            "train.plan.attention=dense train.plan.policy=everything eval_every=3 mesh.fsdp=1"
        )
        return trained.import_published(made / "hub", pairs=[*settings.split(), *pairs])

    return make


class Killed(Exception):
    """Stands for `kill -9`."""


def curve(run: Run) -> list[dict[str, Any]]:
    lines = Path(run.folder, "metrics.jsonl").read_text().splitlines()
    kept = ("step", "loss", "grad_norm", "tokens", "held_out_loss")
    return [{k: v for k, v in json.loads(line).items() if k in kept} for line in lines]


def saved(run: Run) -> Any:
    found = restore(Checkpoints(Path(run.folder, "checkpoints")), run.recipe(1))
    return xf.device_get(found.state)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 16
    path.write_bytes(data)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
def test_killed_and_damaged(
    begun: Callable[..., Run],
    at_step: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    """Killed after the checkpoint of step 2, which is damaged before it goes on from step 0."""
    whole, killed = begun("whole", kind), begun("killed", kind)
    assert fit.fit(whole).ended == "done"
    learned = curve(whole)
    losses = [line["loss"] for line in learned if "loss" in line]
    assert len(losses) == 6
    assert losses[-1] < losses[0]
    if kind.startswith("pairs"):  # At first the model is its own reference.
        assert losses[0] == pytest.approx(math.log(2), abs=1e-6)

    def kill() -> None:
        raise Killed("at step 4")

    at_step(4, kill)
    with pytest.raises(Killed, match="at step 4"):
        fit.fit(killed)
    monkeypatch.undo()
    checkpoints = Path(killed.folder, "checkpoints")
    assert Checkpoints(checkpoints).steps() == [0, 2]
    flip(checkpoints / "2" / "__0_0.distcp")
    with pytest.warns(UserWarning, match="step 2 is skipped: .* was changed"):
        assert fit.fit(killed).ended == "done"
    assert curve(killed) == learned
    states = zip(xf.tree.leaves(saved(killed)), xf.tree.leaves(saved(whole)), strict=True)
    assert all(torch.equal(a, b) for a, b in states)
    assert (checkpoints / "2.damaged").exists()


def test_what_is_trained_is_what_is_exported(
    begun: Callable[..., Run], made: Path, tmp_path: Path
) -> None:
    """Merged, the adapters change their weights alone; transformers finds the same answer."""
    run = begun("a", "adapters")
    fit.fit(run)
    found = trained.load(Path(run.folder))
    trained.export_published(found, tmp_path / "out")
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


def test_the_loss_of_pairs_is_that_of_plain_torch(tmp_path: Path) -> None:
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
    targets, beta, expected = torch.full((3, 32), IGNORE), 0.3, torch.zeros(())

    def log_probability(theirs: Any, text: torch.Tensor, prompt: int) -> torch.Tensor:
        found = theirs(text[None]).logits[0].log_softmax(-1)
        return found[:-1].gather(1, text[1:, None])[prompt - 1 :].sum()

    for row, pairs in enumerate(rows):
        at = number = 0
        for prompt, *answers in pairs:
            begin, ratios = torch.randint(SIZES.vocab, (prompt,), generator=generator), []
            for size in answers:
                answer = torch.randint(SIZES.vocab, (size,), generator=generator)
                text, number = torch.cat([begin, answer]), number + 1
                end = at + prompt + size
                tokens[row, at:end], segments[row, at:end] = text, number
                targets[row, at + prompt - 1 : end - 1] = answer
                at = end
                with torch.no_grad():
                    before = log_probability(reference, text, prompt)
                ratios.append(log_probability(policy, text, prompt) - before)
            expected = expected - F.logsigmoid(beta * (ratios[0] - ratios[1]))
    expected.backward()
    batch, plan = Batch(tokens, targets, segments), Plan(attention="dense")
    assert preference.pair_count(batch) == 3
    loss, grads = xf.jit(
        xf.value_and_grad(lambda p, r, batch: preference.loss(p, r, batch, SIZES, plan, beta))
    )(params[0], params[1], batch)
    torch.testing.assert_close(loss.cpu(), expected.detach(), rtol=1e-5, atol=0.0)
    for ours, theirs in (
        (grads["layers"]["wq"][0], policy.model.layers[0].self_attn.q_proj.weight),
        (grads["embed"], policy.model.embed_tokens.weight),
    ):
        torch.testing.assert_close(ours.cpu(), theirs.grad, rtol=1e-3, atol=1e-6)


def test_parts_of_a_batch_of_pairs_add_up(made: Path, begun: Callable[..., Run]) -> None:
    run = begun("a", "pairs")
    found = trained.load(Path(run.folder))
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
