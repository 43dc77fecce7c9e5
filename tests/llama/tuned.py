"""Short runs of every kind: pre-training, and fine-tuning on answers, with adapters, on pairs."""

import json
from pathlib import Path
from typing import Any

import xfunc as xf
from examples.llama import config, model, train
from examples.llama.checkpoint import trained_weights
from examples.llama.checkpoint.checkpoints import Checkpoints
from examples.llama.config import Run
from examples.llama.data import tokenizer
from examples.llama.hub import hf

SIZES = model.Config(290, 64, 64, layers=1, heads=2, kv_heads=1)
TEMPLATE = (
    "{% for m in messages %}<|begin_of_text|>{{ m.role }}: {{ m.content }}<|end_of_text|>"
    "{% endfor %}{% if add_generation_prompt %}<|begin_of_text|>assistant: {% endif %}"
)
TUNED = {
    "answers": ("chat", "train.optimizer=adamw"),
    "adapters": (
        "chat",
        "train.tune.lora=[layers.w*] train.tune.full=[norm] train.schedule=constant",
    ),
    "pairs": ("pairs", "train.tune.lora=[layers.wq,head] train.tune.rank_stabilised=true"),
    "pairs-full": ("pairs", "train.precision=mixed"),
    "quantised": ("pairs", "train.tune.lora=[layers.wq,head] train.tune.base=nf4"),
    "rounded": ("chat", "train.optimizer=muon train.precision=stochastic"),
}
KINDS = {"text": ("text", "train.model=tiny train.model.vocab=290")} | TUNED


def make(folder: Path) -> Path:
    """Fill a folder with a random model, and the data of every kind of run."""
    tokenizer.train(["yes and no and the rest of it " * 20], SIZES.vocab, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    with xf.disable_jit():
        hf.save(folder / "hub", SIZES, model.init(SIZES, 7), folder)
    made: dict[str, list[Any]] = {"text": [], "chat": [], "pairs": []}
    for i in range(24):
        asked = [{"role": "user", "content": f"is it {i}?"}]
        yes, no = ([{"role": "assistant", "content": text}] for text in ("yes " * 3, "no"))
        made["text"].append({"text": f"is it {i}? " + ("yes " * 3 if i % 2 else "no") * 20})
        made["chat"].append({"messages": asked + (yes if i % 2 else no)})
        made["pairs"].append({"prompt": asked, "chosen": yes, "rejected": no})
    for name, records in made.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    return folder


def settings(made: Path, folder: Path, kind: str) -> list[str]:
    """The settings of a run."""
    data, tune = KINDS[kind]
    return (
        f"folder={folder} data.kind={data} data.files={made / data}.jsonl {tune} "
        "data.batch=4 data.seq=96 train.steps=6 train.warmup=1 train.peak_lr=1e-2 save_every=2 "
        "train.plan.attention=dense train.plan.policy=everything eval_every=3 mesh.fsdp=1"
    ).split()


def begin(made: Path, folder: Path, kind: str, *more: str) -> Run:
    """A run that has made no step; all but pre-training are imported."""
    pairs = [*settings(made, folder, kind), *more]
    if kind == "text":
        return config.read(pairs=[*pairs, f"data.tokenizer={made}"])
    return trained_weights.import_published(made / "hub", pairs=pairs)


def curve(folder: str | Path) -> list[dict[str, Any]]:
    """The metrics that do not depend on time."""
    lines = Path(folder, "metrics.jsonl").read_text().splitlines()
    kept = ("step", "loss", "grad_norm", "tokens", "held_out_loss")
    return [{k: v for k, v in json.loads(line).items() if k in kept} for line in lines]


def saved(run: Run) -> Any:
    """The state in the newest checkpoint, on the host."""
    target = train.abstract_state(run.recipe(1))
    return xf.device_get(Checkpoints(Path(run.folder, "checkpoints")).restore(target).state)
