"""A training step on the CPU: 6 layers of a Llama, unrolled and scanned.

Loss, gradient and SGD, with the weights donated: of xfunc, of JAX, of eager torch and of
`torch.compile`. Each trains in a process of its own, all from the same weights
on the same tokens; they take turns, and the fastest turn of each counts.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

import xfunc as xf
from benchmarks import llama
from benchmarks.peers import ROOT, environment_of, find_jax
from benchmarks.timing import Row, answer, table

C = llama.Config(layers=6, hidden=512, intermediate=1376, vocab=4096, batch=4, seq=256)
ROUNDS = 25
RATE = 0.1
FORMS = "unrolled", "scanned"
Step = Callable[[Any, torch.Tensor], tuple[torch.Tensor, Any]]


def main(jax_python: str | None, rounds: int = ROUNDS) -> None:
    """Print the table.

    Args:
        jax_python: see `find_jax`.
        rounds: how often each gets a turn.
    """
    python = find_jax(jax_python)
    names = [(way, form) for way in ("xfunc", "jax") for form in FORMS]
    names += [(way, "unrolled") for way in ("eager", "compile")]
    running = {name: _start(*name, python) for name in names}
    first = {name: _turn(process) for name, process in running.items()}
    losses = [loss for loss, _ in first.values()]
    assert max(losses) - min(losses) < 1e-3, f"the losses differ: {first}"
    best = dict.fromkeys(running, float("inf"))
    for _ in range(rounds):
        for name, process in running.items():
            time.sleep(0.2)  # Threads of the process before spin for a while.
            best[name] = min(best[name], _turn(process)[1])
    for process in running.values():
        process.communicate()
    unrolled, scanned = (best["xfunc", form] for form in FORMS)
    rows = [
        Row("JAX, unrolled", unrolled, best["jax", "unrolled"], 1),
        Row("JAX, scanned", scanned, best["jax", "scanned"], 1),
        Row("eager torch, unrolled", unrolled, best["eager", "unrolled"], 1),
        Row("torch.compile, unrolled", unrolled, best["compile", "unrolled"], 1),
        Row("xfunc itself: scanned, against unrolled", scanned, unrolled, 1.3),
    ]
    title = f"step: {C.layers} layers of width {C.hidden}, {C.batch} rows of {C.seq}"
    print(table(title, rows))


def _start(way: str, form: str, python: str) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-m", "benchmarks.step", way, form]
    if way == "jax":
        shapes = llama.shapes(C)
        sizes = {**dataclasses.asdict(C), "head_dim": C.head_dim, "shapes": shapes, "rate": RATE}
        arguments = [python, "-m", "benchmarks.jax_llama", "step", form, json.dumps(sizes)]
    return subprocess.Popen(
        arguments,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment_of(),
    )


def _turn(process: subprocess.Popen[str]) -> tuple[float, float]:
    """The loss of a step, and its seconds."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("step\n")
    process.stdin.flush()
    loss, seconds = json.loads(process.stdout.readline())
    return loss, seconds


def scanned_loss(params: dict[str, Any], tokens: torch.Tensor) -> torch.Tensor:
    """`llama.loss`, with the weights of the layers stacked."""
    cos, sin = llama.rope(C, tokens.device)
    x = F.embedding(tokens[:, :-1], params["embed"])
    x, _ = xf.scan(lambda x, w: (llama.block(x, w, cos, sin, C), None), x, params["layers"])
    return llama.head(params, x, tokens)


def unrolled_loss(params: dict[str, Any], tokens: torch.Tensor) -> torch.Tensor:
    """`llama.loss`, with the weights of the layers in a list."""
    return llama.loss(params, tokens, C)


def weights(form: str) -> dict[str, Any]:
    """Of a sine, so that another library has the same."""
    made = xf.tree.map(
        lambda s: (torch.arange(torch.Size(s).numel()) % 1009).sin().reshape(s) * s[0] ** -0.5,
        llama.shapes(C),
        is_leaf=lambda x: isinstance(x, tuple),
    )
    if form == "scanned":
        made["layers"] = xf.tree.map(lambda *leaves: torch.stack(leaves), *made["layers"])
    return made


def tokens() -> torch.Tensor:
    """Rows of them."""
    n = C.batch * (C.seq + 1)
    return (torch.arange(n) * 7919 % C.vocab).reshape(C.batch, C.seq + 1)


def ours(form: str) -> Step:
    """The step of xfunc."""
    loss = xf.value_and_grad(scanned_loss if form == "scanned" else unrolled_loss)

    def step(params: Any, tokens: torch.Tensor) -> tuple[torch.Tensor, Any]:
        value, grads = loss(params, tokens)
        return value, xf.tree.map(lambda p, g: p - RATE * g, params, grads)

    return xf.jit(step, donate_argnums=0)


def theirs(compiled: bool) -> Step:
    """The step of torch."""
    forward = torch.compile(unrolled_loss) if compiled else unrolled_loss

    def step(params: Any, tokens: torch.Tensor) -> tuple[torch.Tensor, Any]:
        leaves = xf.tree.leaves(params)
        for leaf in leaves:
            leaf.requires_grad_().grad = None
        value = forward(params, tokens)
        value.backward()
        with torch.no_grad():
            for leaf in leaves:
                leaf.sub_(leaf.grad, alpha=RATE)
        return value.detach(), params

    return step


def serve(way: str, form: str) -> None:
    """Train on request."""
    if way == "xfunc":
        step = ours(form)
        params, batch = xf.device_put(weights(form)), xf.device_put(tokens())
    else:
        step, params, batch = theirs(way == "compile"), weights(form), tokens()

    def run() -> float:
        nonlocal params
        loss, params = step(params, batch)
        xf.block_until_ready(params)
        return float(loss)

    answer(run)


if __name__ == "__main__":
    serve(*sys.argv[1:])
