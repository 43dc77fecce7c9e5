"""KTO: its loss against plain torch in transformers' model, its rows, and a run."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import xfunc as xf
from examples.llama import config, model
from examples.llama.config import Run
from examples.llama.data.documents import DataError
from examples.llama.data.reader import DataConfig, Reader
from examples.llama.hub import hf
from examples.llama.model import IGNORE, Batch
from examples.llama.model.plan import Plan
from examples.llama.options import SettingError
from examples.llama.train import fit
from examples.llama.tune import preference
from tests.llama import tuned
from tests.llama.texts import write_lines
from tests.llama.tuned import SIZES


@pytest.mark.parametrize("swapped", [False, True])
def test_kto_loss_matches_torch(swapped: bool, tmp_path: Path) -> None:
    """The formula of the paper, with answers one at a time, and gradients."""
    generator = torch.Generator().manual_seed(0)
    folders, params = [tmp_path / "policy", tmp_path / "reference"], []
    for seed, folder in enumerate(folders):
        with xf.disable_jit():
            params.append(model.init(SIZES, seed))
        hf.save(folder, SIZES, params[-1])
    if swapped:  # The estimate of the divergence has another sign.
        folders, params = folders[::-1], params[::-1]
    load: Any = transformers.LlamaForCausalLM.from_pretrained
    policy, reference = (load(folder, dtype=torch.float32) for folder in folders)
    # Rows of answers: whether it is desirable, and the sizes of prompt, answer, and another one.
    rows = [[(True, 3, 4, 6), (False, 2, 5, 2)], [(False, 1, 3, 1), (True, 2, 2, 4)], []]
    tokens, segments = (torch.zeros(3, 40, dtype=torch.int64) for _ in range(2))
    targets, beta, weights = torch.full((3, 40), IGNORE), 0.3, (1.5, 0.5)
    ratios, others, labels = [], [], []

    def log_probability(theirs: Any, text: torch.Tensor, prompt: int) -> torch.Tensor:
        found = theirs(text[None]).logits[0].log_softmax(-1)
        return found[:-1].gather(1, text[1:, None])[prompt - 1 :].sum()

    for row, answers in enumerate(rows):
        at = 0
        for number, (label, prompt, *sizes) in enumerate(answers):
            begin = torch.randint(SIZES.vocab, (prompt,), generator=generator)
            labels.append(label)
            for i, (size, into) in enumerate(zip(sizes, (ratios, others), strict=True)):
                answer = torch.randint(SIZES.vocab, (size,), generator=generator)
                text, end = torch.cat([begin, answer]), at + prompt + size
                tokens[row, at:end] = text
                segments[row, at:end] = 4 * number + (1 if label else 3) + i
                targets[row, at + prompt - 1 : end - 1] = answer
                at = end
                with torch.no_grad():
                    before = log_probability(reference, text, prompt)
                into.append(log_probability(policy, text, prompt) - before)
    desirable = torch.tensor(labels)
    divergence = torch.stack(others).mean().clamp(min=0).detach()
    change = torch.stack(ratios) - divergence
    values = torch.where(desirable, beta * change, -beta * change)
    weight = torch.where(desirable, weights[0], weights[1])
    expected = (weight * (1 - values.sigmoid())).sum()
    expected.backward()
    batch, plan = Batch(tokens, targets, segments), Plan(attention="dense")
    assert preference.answer_count(batch) == 4

    def sums(params: Any, reference: Any, batch: Batch) -> Any:
        found = preference.kto(params, reference, batch, SIZES, plan, beta, weights)
        return found.loss, found

    (_, found), grads = xf.jit(xf.value_and_grad(sums, has_aux=True))(params[0], params[1], batch)
    assert found.kl is not None
    torch.testing.assert_close(found.loss.cpu(), expected.detach(), rtol=1e-5, atol=0.0)
    torch.testing.assert_close(found.kl.cpu(), 4 * divergence, rtol=1e-4, atol=0.0)
    torch.testing.assert_close(found.margin.cpu(), values.detach().sum(), rtol=1e-4, atol=1e-5)
    assert found.correct == (values > 0).sum()
    for ours, theirs in (
        (grads["layers"]["wq"][0], policy.model.layers[0].self_attn.q_proj.weight),
        (grads["embed"], policy.model.embed_tokens.weight),
    ):
        torch.testing.assert_close(ours.cpu(), theirs.grad, rtol=1e-3, atol=1e-6)


def records(count: int) -> list[dict[str, Any]]:
    return [
        {"prompt": f"is it {i}?", "completion": f" yes {i}" * (i % 4 + 1), "label": i % 3 > 0}
        for i in range(count)
    ]


def test_reader_unpaired_rows(tmp_path: Path, trained: Path) -> None:
    """Each answer comes with its label, and its prompt with the answer before, which may be cut."""
    rows, valid = records(30), records(34)[30:]
    file = write_lines(tmp_path / "a.jsonl", *rows)
    other = write_lines(tmp_path / "b.jsonl", *valid)
    given = DataConfig((str(file),), kind="unpaired", batch=4, seq=64, tokenizer=str(trained))
    reader = Reader(dataclasses.replace(given, validation=(str(other),)), tmp_path, 300)
    known, seen = reader.tokenizer, {}
    batches = [xf.tree.leaves(reader.batch(step)) for step in range(20)]
    for tokens, targets, segments in (row for b in batches for row in zip(*b, strict=True)):
        for number in range((int(segments.max()) + 3) // 4):
            label = bool((segments == 4 * number + 1).any())
            texts, answers = [], []
            for i in (0, 1):
                mine = segments == 4 * number + (1 if label else 3) + i
                texts.append(known.decode(tokens[mine].tolist()))
                answers.append(known.decode(targets[mine][targets[mine] != IGNORE].tolist()))
            assert [t.endswith(a) for t, a in zip(texts, answers, strict=True)] == [True, True]
            prompts = [t.removesuffix(a) for t, a in zip(texts, answers, strict=True)]
            assert prompts[0] == prompts[1]
            seen[prompts[0]] = label, *answers
    assert sorted(seen) == sorted(row["prompt"] for row in rows)
    for i, row in enumerate(rows):
        label, answer, another = seen[row["prompt"]]
        assert (label, answer) == (row["label"], row["completion"])
        before = rows[i - 1]["completion"]
        assert another == before or (before.startswith(another) and another)
    held = reader.held_out(0)
    assert preference.answer_count(held) == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": None}, "line 2 of .* has no true or false for 'label': mend it"),
        ({"label": 1}, "line 2 of .* has no true or false for 'label': mend it"),
        ({"completion": None}, "line 2 of .* has no 'completion'; its fields are prompt"),
        ({"completion": "x" * 61}, "line 2 of .* has 6[0-9] tokens, and a row 64"),
    ],
)
def test_reader_unpaired_bad_records_raise(
    change: dict[str, Any], message: str, tmp_path: Path, trained: Path
) -> None:
    rows = records(30)
    rows[1] |= {"prompt": "a"} | change
    file = write_lines(tmp_path / "a.jsonl", *rows)
    given = DataConfig((str(file),), kind="unpaired", seq=64, tokenizer=str(trained))
    with pytest.raises(DataError, match=message):
        Reader(given, tmp_path, 300)


def test_kto_run(made: Path, tmp_path: Path) -> None:
    rows = [
        {"prompt": f"is it {i}?", "completion": " yes" if i % 2 else " no", "label": i % 2 == 1}
        for i in range(48)
    ]
    file = write_lines(tmp_path / "a.jsonl", *rows)
    pairs = ["data.kind=unpaired", f"data.files={file}", "data.batch=8", "train.preference=kto"]
    run = tuned.begin(made, tmp_path / "run", "pairs", *pairs)
    assert run.recipe(1).compared
    fit.fit(run)
    text = Path(run.folder, "metrics.jsonl").read_text()
    first, *_, last = (line for line in map(json.loads, text.splitlines()) if "loss" in line)
    assert [first[name] for name in ("loss", "margin", "accuracy", "kl")] == [0.5, 0.0, 0.0, 0.0]
    assert last["loss"] < 0.5
    assert last["margin"] > 0
    assert last["accuracy"] > 0.9


def test_kto_settings(run_of: Callable[..., Run]) -> None:
    for pairs, message in (
        (["data.kind=unpaired"], "data.kind is unpaired, and train.preference is dpo: use data"),
        (["data.kind=pairs", "train.preference=kto"], "use data.kind=unpaired, or train.pref"),
        (["train.kto_weights=[1, 2]"], "kto_weights: not for preference dpo"),
        (["train.preference=kto", "train.kto_weights=[1]"], r"kto_weights is \[1\.0\]: use two"),
        (["train.preference=kto", "train.orpo_weight=1"], "orpo_weight: not for preference kto"),
        (["data.kind=unpaired", "data.dynamic=true"], "dynamic needs rows of one document, and"),
    ):
        with pytest.raises(SettingError, match=message):
            run_of("a", *pairs)
    kto = ["data.kind=unpaired", "train.preference=kto", "train.dpo_beta=0.2"]
    found = config.tuned(config.read(pairs=kto, run=config.TUNING), config.TUNING)
    assert found.train.peak_lr == 1e-6
