"""KTO of one batch of answers, against TRL's trainer on the same model and records."""

from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
import transformers
import trl  # pyright: ignore[reportMissingImports]

import xfunc as xf
from examples.llama import model
from examples.llama.data.reader import DataConfig, Reader
from examples.llama.hub import hf
from examples.llama.model.plan import Plan
from examples.llama.tune import preference
from tests.llama import tuned
from tests.llama.texts import write_lines


@pytest.mark.filterwarnings("default::FutureWarning", "default::UserWarning")  # theirs
def test_kto_loss_matches_trl(tmp_path: Path) -> None:
    made = tuned.make(tmp_path)
    rows = [
        {"prompt": f"is it {i}?", "completion": " yes" * (i % 4 + 1), "label": i % 3 > 0}
        for i in range(12)
    ]
    file, other = (
        write_lines(tmp_path / f"{name}.jsonl", *of) for name, of in (("a", rows), ("b", rows[:2]))
    )
    with xf.disable_jit():
        reference = model.init(tuned.SIZES, 7)
        policy = xf.tree.map(lambda w: w * 0.7, reference)
    hf.save(tmp_path / "policy", tuned.SIZES, policy, made / "hub")

    load: Any = transformers.AutoModelForCausalLM.from_pretrained
    theirs, base = (load(tmp_path / name, dtype=torch.float32) for name in ("policy", "hub"))
    args = trl.KTOConfig(
        str(tmp_path / "trl"),
        per_device_train_batch_size=12,
        beta=0.3,
        desirable_weight=1.5,
        undesirable_weight=0.5,
        report_to=[],
        use_cpu=True,
        bf16=False,
    )
    trainer = trl.KTOTrainer(
        theirs,
        base,
        args,
        train_dataset=datasets.Dataset.from_list(rows),
        processing_class=transformers.AutoTokenizer.from_pretrained(made / "hub"),
    )
    [inputs] = trainer.get_train_dataloader()
    expected = trainer.compute_loss(theirs, inputs)
    expected.backward()

    config = DataConfig(
        (str(file),), (), (str(other),), "unpaired", tokenizer=str(made / "hub"), batch=12, seq=96
    )
    batch = Reader(config, tmp_path / "run", 290).batch(0)
    count = preference.answer_count(batch)
    assert count % 12 == 0  # Some epochs: all records are equally frequent.

    def mean(params: Any, base: Any) -> Any:
        plan, weights = Plan(attention="dense"), (1.5, 0.5)
        found = preference.kto(params, base, batch, tuned.SIZES, plan, 0.3, weights)
        return found.loss / count, found.kl

    (loss, kl), grads = xf.value_and_grad(mean, has_aux=True)(policy, reference)
    torch.testing.assert_close(loss, expected.detach(), rtol=1e-5, atol=0.0)
    assert kl > 0  # so that it matters
    grad = theirs.model.layers[0].self_attn.q_proj.weight.grad
    torch.testing.assert_close(grads["layers"]["wq"][0], grad, rtol=1e-3, atol=1e-6)
