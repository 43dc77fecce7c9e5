"""The program on the page about several processes, run by two as torchrun starts them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import xfunc as xf
from tests.backends.test_launchers import port
from tests.docs.test_docs import parse
from tests.support.fresh import Server


def program() -> str:
    """The page's block that is a whole program."""
    texts = [token.content for token in parse("docs/distributed.md") if token.type == "fence"]
    (found,) = (text for text in texts if "initialize()" in text and "save_checkpoint" in text)
    return found


def eager() -> tuple[list[float], torch.Tensor]:
    """The losses that it prints, and the weights in the end, as torch computes them."""
    w, truth, losses = torch.zeros(4, requires_grad=True), torch.linspace(-1, 1, 4), []
    optimizer = torch.optim.SGD([w], 0.1)
    for step in range(50):
        x = torch.randn(64, 4, generator=torch.Generator().manual_seed(step))
        loss = torch.nn.functional.mse_loss(x @ w, x @ truth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses[::10], w.detach()


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize("count", [1, 2])
def test_distributed_page_program(count: int, tmp_path: Path, fresh: Server) -> None:
    env = {"CPU_NUM_DEVICES": "2", "JAX_PLATFORMS": "cpu", "WORLD_SIZE": str(count)}
    env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port()), "XFUNC_BACKEND": ""}
    env |= {"LOCAL_WORLD_SIZE": str(count), "NPROC": ""}
    running = [
        fresh.start(program(), cwd=tmp_path, env={**env, "RANK": str(k), "LOCAL_RANK": str(k)})
        for k in range(count)
    ]
    done = [process.wait() for process in running]
    assert [each.returncode for each in done] == [0] * count, done[-1].stderr
    losses, w = eager()
    said = [re.findall(r"^step (\d+): (\S+)$", each.stdout, re.MULTILINE) for each in done]
    assert [int(step) for step, _ in said[0]] == [0, 10, 20, 30, 40]
    assert [float(loss) for _, loss in said[0]] == pytest.approx(losses, rel=1e-4, abs=1e-6)
    assert said[1:] == [[]] * (count - 1), "Only process 0 prints."
    loaded = xf.sharding.load_checkpoint(tmp_path / "fitted", {"w": torch.zeros(4)})
    torch.testing.assert_close(loaded["w"].cpu(), w)
