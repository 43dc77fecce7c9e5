"""Third derivatives in all eight orders of modes, against differences of eager torch's second.

Torch's own third derivatives are wrong for layer, batch and instance norms; those of `det` are NaN
in `torch.func`. Left out: operations other than these, dtypes but float64, `vmap`.
"""

import itertools
from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F

import xfunc as xf

Tensor = torch.Tensor
Function = Callable[[Tensor], Tensor]
Mode = Callable[[Function, Tensor], Function]


def some(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


W = some(3, seed=4)


def spd(x: Tensor) -> Tensor:
    return x @ x.mT + torch.eye(len(x), dtype=x.dtype, device=x.device)


WERE_WRONG: dict[str, Function] = {
    "layer_norm": lambda x: F.layer_norm(x, (3,), W, W),
    "native_layer_norm": lambda x: torch.native_layer_norm(x, (3,), None, None, 1e-5)[0],
    "det": torch.linalg.det,
}
RIGHT: dict[str, Function] = {
    "batch_norm": lambda x: F.batch_norm(x, None, None, W, W, training=True),
    "batch_norm in evaluation": lambda x: F.batch_norm(x, W, W.abs(), W, W),
    "instance_norm": lambda x: F.instance_norm(x[None], weight=W, bias=W),
    "group_norm": lambda x: F.group_norm(x[None], 1, W, W),
    "rms_norm": lambda x: F.rms_norm(x, (3,)),
    "slogdet": lambda x: torch.linalg.slogdet(x)[1],
    "inv": torch.linalg.inv,
    "solve": lambda x: torch.linalg.solve(x, x[0].exp()),
    "cholesky": lambda x: torch.linalg.cholesky(spd(x)),
    "eigvalsh": lambda x: torch.linalg.eigvalsh(spd(x)),
    "svdvals": torch.linalg.svdvals,
    "matrix_exp": torch.matrix_exp,
    "softmax": lambda x: F.softmax(x, -1),
    "logcumsumexp": lambda x: x.logcumsumexp(-1),
    "cumprod": lambda x: x.cumprod(-1),
    "prod": lambda x: x.prod(-1),
    "std": lambda x: x.std(-1),
    "norm": lambda x: x.norm(dim=-1),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], 2 * x[None], x[None]),
    "cross_entropy": lambda x: F.cross_entropy(x, torch.tensor([1, 2, 0])),
}


@pytest.mark.parametrize("name", WERE_WRONG)
def test_third_derivative_that_was_wrong(name: str) -> None:
    check(WERE_WRONG[name])


@pytest.mark.sample(10, seed=0)
@pytest.mark.parametrize("name", RIGHT)
def test_third_derivative(name: str) -> None:
    check(RIGHT[name])


def check(function: Function) -> None:
    x, *directions = (some(3, 3, seed=k) for k in range(4))
    step = 1e-4 * directions[2]
    expected = (second(function, x + step, directions) - second(function, x - step, directions)) / (
        2e-4
    )

    def thirds(x: Tensor) -> list[Tensor]:
        return [nested(modes, x) for modes in itertools.product([pushed, pulled], repeat=3)]

    def nested(modes: Sequence[Mode], x: Tensor) -> Tensor:
        f: Function = lambda x: function(x).sin().sum()  # noqa: E731
        for mode, v in zip(modes, directions, strict=True):
            f = mode(f, v)
        return f(x)

    for found in xf.jit(thirds)(x):
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-5, atol=1e-5)


def second(function: Function, x: Tensor, directions: list[Tensor]) -> Tensor:
    x = x.clone().requires_grad_()
    (first,) = torch.autograd.grad(function(x).sin().sum(), x, create_graph=True)
    return (torch.autograd.grad((first * directions[0]).sum(), x)[0] * directions[1]).sum()


def pushed(f: Function, v: Tensor) -> Function:
    return lambda x: xf.jvp(f, (x,), (v,))[1]


def pulled(f: Function, v: Tensor) -> Function:
    return lambda x: (xf.grad(f)(x) * v).sum()
