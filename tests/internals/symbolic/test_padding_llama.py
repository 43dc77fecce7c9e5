"""The Llama example's loss and gradients: one program for all batches and lengths of a bucket."""

import pytest
import torch

import xfunc as xf
from examples.llama.model import Config, batch_of, init, loss
from tests.internals.symbolic.test_padding import garbage_in_the_padding as garbage_in_the_padding

B, S = xf.Dim("B", max=4), xf.Dim("S", min=2, max=33)
CONFIG = Config.tiny(vocab=64)


def gradients(params, windows):
    return xf.value_and_grad(lambda p: loss(p, batch_of(windows), CONFIG))(params)


@pytest.mark.slow
def test_padding_llama_loss_and_gradients():
    params = xf.tree.map(torch.Tensor.cpu, init(CONFIG, dtype=torch.float64))
    step = xf.jit(gradients, dynamic_shapes=(None, (B, S)), buckets={B: [4], S: [33]})
    g = torch.Generator().manual_seed(0)
    for b, s in ((3, 9), (4, 33), (2, 2), (1, 17)):
        windows = torch.randint(0, 64, (b, s), generator=g)
        found = xf.tree.leaves(step(params, windows))
        with xf.disable_jit():
            expected = xf.tree.leaves(gradients(params, windows))
        for got, want in zip(found, expected, strict=True):
            torch.testing.assert_close(
                got.cpu(), want, rtol=1e-5, atol=1e-6
            )  # it has float32 inside
    text = step.explain()
    assert "bucket B<=4, S<=33: 3 calls, one program" in text, text
    assert "bucket B<=4, S<=2: 1 calls, one program" in text, text  # torch multiplies single tokens
    assert step.cache_info().compiles == 2
