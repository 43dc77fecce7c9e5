"""The demo: the training step of `examples.llama.demo`, and text from what it trained."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import torch

import xfunc as xf
from benchmarks.training import plain_loss
from examples.llama import demo, train
from examples.llama.data.data_config import DataConfig
from examples.llama.data.reader import Reader
from examples.llama.model import Batch, generate
from examples.llama.model.sampling import Sampling, Settings

STEPS = 1000
PROMPT = 'The "for" statement is used to'


def check(small: bool, only: Sequence[str] = ()) -> None:
    """Train, beside eager torch at the first step, and write a text."""
    steps = 20 if small else STEPS
    recipe = demo.recipe(steps)
    with tempfile.TemporaryDirectory() as made:
        reader = Reader(DataConfig(files=("python-docs",)), made, recipe.model.vocab)
        batches = [reader.batch(k) for k in range(steps)]
    state = xf.jit(lambda: train.init(recipe))()
    params = xf.device_get(state.params)
    losses, times = [], []
    for k, batch in enumerate(batches):
        start = time.perf_counter()
        state, metrics = train.train_step(state, batch, recipe=recipe)
        losses.append(float(metrics.loss))
        times.append(time.perf_counter() - start)
        if k == 0:
            _beside_eager(params, batch, recipe, losses[0], float(metrics.grad_norm))
    last = statistics.mean(losses[-50:])
    print(f"{steps} steps, {1e3 * statistics.median(times):.2f} ms each")
    print(f"loss: first {losses[0]:.3f}, mean of the last 50 {last:.3f}")
    begun = reader.tokenizer.encode_prompt(PROMPT)
    tokens, lengths = generate.pad([begun])
    settings: Any = {"config": recipe.model, "new": demo.NEW, "lengths": lengths}
    sampling = Sampling.of([Settings(demo.TEMPERATURE)])
    text = generate.generate(state.params, tokens, sampling, **settings)
    print(PROMPT + reader.tokenizer.decode_after(begun, xf.device_get(text)[0].tolist()))


def _beside_eager(params: Any, batch: Batch, recipe: Any, loss: float, norm: float) -> None:
    """Compare the loss and the gradient's norm with those of eager torch on this GPU."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    leaves = xf.tree.map(lambda p: p.to(device).requires_grad_(), params)
    tokens, targets, segments = (x.to(device).long() for x in batch if x is not None)
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
