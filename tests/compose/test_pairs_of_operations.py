"""Two operations, one after the other: values and gradients against eager torch in float64.

An operation's derivative gets, from the next one's, tensors that it never gets when it is alone:
conjugated ones, views, and ones with a pending write.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import xfunc as xf

Tensor = torch.Tensor
Op = Callable[[Tensor], Tensor]

_FRAME = 4


def _window(x: Tensor) -> Tensor:
    return torch.hann_window(_FRAME, dtype=torch.float64).to(x.device)


def _stft(x: Tensor) -> Tensor:
    return torch.stft(x, _FRAME, 2, window=_window(x), pad_mode="constant", return_complex=True)


def _istft(x: Tensor) -> Tensor:
    frames = F.pad(x.reshape(1, -1), (0, 12))[:, :12].reshape(1, 3, 4)
    return torch.istft(frames, _FRAME, 2, window=_window(x))


def _square(x: Tensor) -> Tensor:
    flat = F.pad(x.reshape(-1), (0, 9))[:9].reshape(3, 3)
    return flat @ flat.mH + 2 * torch.eye(3, dtype=x.dtype).to(x.device)


def _written(x: Tensor) -> Tensor:
    y = x * 1
    y[..., 1:].mul_(3)
    return y


def _gathered(x: Tensor) -> Tensor:
    return x.gather(-1, torch.argsort(x.detach(), -1).flip(-1))


REAL: dict[str, Op] = {  # of real tensors
    "rfft": lambda x: torch.fft.rfft(x),
    "rfft to 5": lambda x: torch.fft.rfft(x, n=5, norm="ortho"),
    "rfft2": lambda x: torch.fft.rfft2(x, s=(3, 4)),
    "rfft of rows": lambda x: torch.fft.rfft(x, dim=0),
    "ihfft": lambda x: torch.fft.ihfft(x),
    "fft": lambda x: torch.fft.fft(x),
    "stft": _stft,
    "complex": lambda x: torch.complex(x, x.flip(-1)),
    "sort": lambda x: x.sort(-1).values,
    "topk": lambda x: x.topk(2, -1).values,
    "median": lambda x: x.median(-1, keepdim=True).values,
    "kthvalue": lambda x: x.kthvalue(2, -1, keepdim=True).values,
    "amax": lambda x: x.amax(0, keepdim=True),
    "cummax": lambda x: x.cummax(-1).values,
    "logcumsumexp": lambda x: x.logcumsumexp(-1),
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(0),
    "logsumexp": lambda x: x.logsumexp(-1, keepdim=True),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "gelu": lambda x: F.gelu(x),
    "atan2": lambda x: torch.atan2(x, x.flip(-1) + 4),
    "gather": _gathered,
    "max_pool": lambda x: F.max_pool1d(F.pad(x, (1, 1)), 2),
    "avg_pool": lambda x: F.avg_pool1d(F.pad(x, (1, 1)), 2),
    "interpolate": lambda x: F.interpolate(x[None], size=5, mode="linear")[0],
    "replicate": lambda x: F.pad(x[None], (2, 1), mode="replicate")[0],
    "circular": lambda x: F.pad(x[None], (1, 1), mode="circular")[0],
    "lerp": lambda x: torch.lerp(x, x.flip(0), 0.3),
    "clamp": lambda x: x.clamp(-0.5, 0.7),
    "eigvalsh": lambda x: torch.linalg.eigvalsh(_square(x))[None],
    "embedding": lambda x: F.embedding(torch.tensor([[0, 0, 1]]).to(x.device) % x.shape[0], x)[0],
}
COMPLEX: dict[str, Op] = {  # of complex tensors
    "irfft": lambda x: torch.fft.irfft(x),
    "irfft to 5": lambda x: torch.fft.irfft(x, n=5, norm="ortho"),
    "irfft2": lambda x: torch.fft.irfft2(x, s=(3, 4)),
    "irfft of rows": lambda x: torch.fft.irfft(x, n=6, dim=0),
    "hfft": lambda x: torch.fft.hfft(x, n=4),
    "hfft2": lambda x: torch.fft.hfft2(x, s=(4, 3)),
    "istft": _istft,
    "abs": lambda x: x.abs(),
    "real": lambda x: x.real,
    "imag": lambda x: x.imag,
    "angle": lambda x: x.angle(),
    "view_as_real": lambda x: torch.view_as_real(x.resolve_conj()).flatten(-2),
    "conj": lambda x: x.conj(),
    "ifft2": lambda x: torch.fft.ifft2(x),
    "fftshift": lambda x: torch.fft.fftshift(x, -1),
}
EITHER: dict[str, Op] = {  # of both
    "written in place": _written,
    "roll": lambda x: x.roll(1, -1),
    "flip": lambda x: x.flip(0),
    "cumsum": lambda x: x.cumsum(-1),
    "cumprod": lambda x: x.cumprod(-1),
    "prod": lambda x: x.prod(-1, keepdim=True),
    "diff": lambda x: x.diff(dim=-1, prepend=x[..., :1]),
    "pad": lambda x: F.pad(x, (1, 2, 0, 1)),
    "crop": lambda x: F.pad(x, (0, -x.shape[-1] // 2)) * 2,
    "unfold": lambda x: F.pad(x, (0, 3)).unfold(-1, 3, 2).flatten(-2),
    "stack": lambda x: torch.stack([x, x * 2], -1).flatten(-2),
    "expand": lambda x: x[..., :1].expand(*x.shape[:-1], 4),
    "repeat": lambda x: x.repeat(1, 2),
    "transpose": lambda x: x.transpose(0, 1),
    "select_scatter": lambda x: x.select_scatter(x[0] * 2, 0, -1),
    "slice_scatter": lambda x: x.slice_scatter(x[:1] * 3, 0, 0, 1),
    "index_put": lambda x: x.index_put((torch.tensor([0]).to(x.device),), x[-1]),
    "index_add": lambda x: x.index_add(0, torch.tensor([0, 0]).to(x.device), x.repeat(2, 1)[:2]),
    "masked_fill": lambda x: x.masked_fill(x.real.detach() > 0.2, 0.5),
    "tril": lambda x: x.tril(),
    "diagonal": lambda x: x.diagonal()[None],
    "matmul": lambda x: x @ x.mT,
    "inv": lambda x: torch.linalg.inv(_square(x)),
    "cholesky": lambda x: torch.linalg.cholesky(_square(x)),
    "solve": lambda x: torch.linalg.solve(_square(x), _square(x)[:, :2] * 2),
    "norm": lambda x: torch.linalg.vector_norm(x, dim=-1, keepdim=True),
    "einsum": lambda x: torch.einsum("ij,kj->ki", x, x),
    "chunks": lambda x: torch.cat([c * k for k, c in enumerate(x.chunk(2, -1), 1)], -1),
    "reciprocal": lambda x: (x + 4).reciprocal(),
}
FIRST, SECOND = {**REAL, **EITHER}, {**REAL, **COMPLEX, **EITHER}
X = torch.tensor([[0.31, -0.83, 0.72, 1.13], [-0.24, 0.97, -1.36, 0.45]], dtype=torch.float64)


def _pairs() -> list[tuple[str, str]]:
    """2,000 pairs in which the second operation takes what the first one gives, at random."""
    fitting: list[tuple[str, str]] = []
    for name, op in FIRST.items():
        seconds = COMPLEX if op(X).is_complex() else REAL
        fitting += [(name, second) for second in {**seconds, **EITHER}]
    return random.Random(0).sample(fitting, 2000)


def _loss(f: Op, g: Op) -> Op:
    def loss(x: Tensor) -> Tensor:
        y = g(f(x))
        y = torch.view_as_real(y.resolve_conj()) if y.is_complex() else y
        y = y.reshape(-1)
        return (y.square() * torch.linspace(1, 2, y.shape[0], dtype=y.dtype).to(y.device)).sum()

    return loss


def _check(f: Op, g: Op) -> None:
    loss = _loss(f, g)
    try:
        gradient, value = torch.func.grad_and_value(loss)(X)
    except RuntimeError as refused:  # The second operation refuses the shape or the dtype.
        with pytest.raises(RuntimeError, match=re.escape(str(refused))):
            xf.value_and_grad(loss)(X)
        return
    got = xf.value_and_grad(loss)(X)
    torch.testing.assert_close(xf.device_get(got), (value, gradient), rtol=1e-8, atol=1e-8)


FOURIER = [
    (a, b)
    for a in ("rfft", "rfft to 5", "rfft of rows", "rfft2", "ihfft", "stft")
    for b in ("irfft", "irfft to 5", "irfft of rows", "irfft2", "hfft", "hfft2", "istft")
]
PAIRS = _pairs()
CHUNK = 10


@pytest.mark.sample(6, seed=0)
@pytest.mark.parametrize(("first", "second"), FOURIER)
def test_gradient_through_two_fourier_transforms(first: str, second: str) -> None:
    _check(FIRST[first], SECOND[second])


@pytest.mark.sample(200, seed=0)
@pytest.mark.parametrize("start", range(0, len(PAIRS), CHUNK))
def test_value_and_gradient_of_two_operations(start: int) -> None:
    failures: list[str] = []
    for first, second in PAIRS[start : start + CHUNK]:
        try:
            _check(FIRST[first], SECOND[second])
        except (AssertionError, RuntimeError) as error:
            failures.append(f"{second} of {first}: {error}")
    assert not failures, "\n".join(failures)
