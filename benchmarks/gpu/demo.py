"""The demo: the exported training step of `examples.llama.demo`, and text from what it trained."""

from __future__ import annotations

import lzma
import pickle
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import xfunc as xf
from benchmarks.training import plain_loss
from examples.llama import demo, generate, tokenizer, train
from examples.llama.data_config import DataConfig
from examples.llama.model import Batch
from examples.llama.reader import Reader

STEPS = 1000
PROMPT = 'The "for" statement is used to'


def export(folder: Path, only: Sequence[str] = ()) -> None:
    """Export the programs, and write the batches of all steps."""
    recipe = demo.recipe(STEPS)
    with tempfile.TemporaryDirectory() as made:
        data = DataConfig(files=("python-docs",))
        reader = Reader(data, made, recipe.model.vocab)
        reader.tokenizer.save(folder / "tokenizer")
        batches = [reader.batch(k) for k in range(STEPS)]
    numbers = [[x.numpy().astype(np.int16) for x in b if x is not None] for b in batches]
    (folder / "demo.xz").write_bytes(lzma.compress(pickle.dumps(numbers)))
    init = xf.jit(lambda: train.init(recipe))
    state = xf.eval_shape(init)
    xf.export.save(init.lower(), folder / "demo-init.xfunc")
    xf.export.save(
        train.train_step.lower(state, batches[0], recipe=recipe), folder / "demo-step.xfunc"
    )
    tokens, lengths = generate.pad([reader.tokenizer.encode_prompt(PROMPT)])
    settings: Any = {"config": recipe.model, "new": demo.NEW, "temperature": demo.TEMPERATURE}
    text = generate.generate.lower(
        state.params, tokens, xf.random.key(0), lengths=lengths, **settings
    )
    xf.export.save(text, folder / "demo-text.xfunc")


def check(folder: Path, only: Sequence[str] = ()) -> None:
    """Train, beside eager torch at the first step, and write a text."""
    recipe = demo.recipe(STEPS)
    numbers = pickle.loads(lzma.decompress((folder / "demo.xz").read_bytes()))
    batches = [Batch(*(torch.from_numpy(x.astype(np.int32)) for x in b)) for b in numbers]
    init, step, text = (
        xf.export.load(folder / f"demo-{name}.xfunc") for name in ("init", "step", "text")
    )
    state = init()
    params = xf.device_get(state[0])
    losses, times = [], []
    for k, batch in enumerate(batches):
        start = time.perf_counter()
        state, metrics = step(state, batch)
        losses.append(float(metrics.loss))
        times.append(time.perf_counter() - start)
        if k == 0:
            _beside_eager(params, batch, recipe, losses[0], float(metrics.grad_norm))
    last = statistics.mean(losses[-50:])
    print(f"{STEPS} steps, {1e3 * statistics.median(times):.2f} ms each")
    print(f"loss: first {losses[0]:.3f}, mean of the last 50 {last:.3f}")
    known = tokenizer.load(str(folder / "tokenizer"))
    begun = known.encode_prompt(PROMPT)
    tokens, lengths = generate.pad([begun])
    made = text(state[0], tokens, torch.zeros(2, dtype=torch.int32), lengths=lengths)
    print(PROMPT + known.decode_after(begun, xf.device_get(made)[0].tolist()))


def _beside_eager(params: Any, batch: Batch, recipe: Any, loss: float, norm: float) -> None:
    """Compare the loss and the gradient's norm with those of eager torch on this GPU."""
    leaves = xf.tree.map(lambda p: p.cuda().requires_grad_(), params)
    tokens, targets, segments = (x.cuda().long() for x in batch if x is not None)
    seen = torch.ones(
        tokens.shape[1], tokens.shape[1], dtype=torch.bool, device=tokens.device
    ).tril()
    mask = (seen & (segments[:, None] == segments[:, :, None]))[:, None]
    with torch.device(tokens.device):
        theirs = plain_loss(leaves, tokens, targets, mask, c=recipe.model)
    theirs.backward()
    grads = [p.grad for p in xf.tree.leaves(leaves)]
    total = torch.nn.utils.get_total_norm(grads)
    print(f"first step beside eager torch: loss {loss:.6f} and {theirs.item():.6f}, ", end="")
    print(f"norm of the gradient {norm:.6f} and {total.item():.6f}")
    torch.testing.assert_close(loss, theirs.item(), rtol=1e-5, atol=0.0)
    torch.testing.assert_close(norm, total.item(), rtol=1e-4, atol=0.0)
