"""Convolutional network: a torch module with batch normalization, trained by pure functions.

`xf.functional` makes the module a function of its parameters and buffers. The running statistics
are one more result of the loss, carried from step to step beside the optimizer's state, and one
`xf.jit` with `xf.scan` holds the whole training.

In JAX: `flax.linen.BatchNorm` with `mutable=["batch_stats"]`.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import xfunc as xf
from examples.gallery._digits import digits


class Result(NamedTuple):
    """The module with what was learned, held-out images, and the logits that `apply` gives."""

    module: nn.Module
    images: Tensor
    labels: Tensor
    logits: Tensor
    accuracy: float


def images(key: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Noisy images [n, 1, 28, 28] of digits, and which they are."""
    a, b = xf.random.split(key)
    clean, labels = digits(a, n)
    return (clean + 0.5 * xf.random.normal(b, clean.shape))[:, None], labels


def network() -> nn.Module:
    """Two convolutions and a linear layer, for images [n, 1, 28, 28]."""
    blocks = []
    for n_in, n_out in ((1, 8), (8, 16)):
        convolution = nn.Conv2d(n_in, n_out, 3, stride=2, bias=False)
        blocks += [convolution, nn.BatchNorm2d(n_out), nn.ReLU()]
    return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(16 * 6 * 6, 10))


def main() -> Result:
    """Train on new images at each step, and test on others."""
    torch.manual_seed(0)
    module = network()
    apply, params, buffers = xf.functional(module)
    optimizer = xf.optim.adam(1e-2)

    def loss(params: Any, buffers: Any, x: Tensor, labels: Tensor) -> tuple[Tensor, Any]:
        logits, buffers = apply(params, buffers, x)
        return F.cross_entropy(logits, labels), buffers

    @xf.jit
    def train(params: Any, buffers: Any, keys: Tensor) -> Any:
        def step(carry: Any, key: Tensor) -> Any:
            params, buffers, state = carry
            grads, buffers = xf.grad(loss, has_aux=True)(params, buffers, *images(key, 64))
            updates, state = optimizer.update(grads, state)
            return (xf.optim.apply_updates(params, updates), buffers, state), None

        return xf.scan(step, (params, buffers, optimizer.init(params)), keys)[0][:2]

    a, b = xf.random.split(xf.random.key(0))
    params, buffers = train(params, buffers, xf.random.split(a, 150))
    module.load_state_dict(xf.device_get({**params, **buffers}))
    module.eval()
    x, labels = images(b, 500)
    logits = xf.jit(apply)(params, buffers, x)[0]
    accuracy = (logits.argmax(-1) == labels).float().mean().item()
    print(f"{accuracy:.0%} of 500 other images are told right")
    x, labels, logits = xf.device_get((x, labels, logits))
    return Result(module, x, labels, logits, accuracy)


if __name__ == "__main__":
    main()
