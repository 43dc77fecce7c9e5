"""Images of the digits of a seven-segment display, for examples that need some."""

import torch
from torch import Tensor

import xfunc as xf

#        top, upper left, upper right, middle, lower left, lower right, bottom
LIT = """1 1 1 0 1 1 1
         0 0 1 0 0 1 0
         1 0 1 1 1 0 1
         1 0 1 1 0 1 1
         0 1 1 1 0 1 0
         1 1 0 1 0 1 1
         1 1 0 1 1 1 1
         1 0 1 0 0 1 0
         1 1 1 1 1 1 1
         1 1 1 1 0 1 1"""
ROWS = [(0, 3), (0, 10), (0, 10), (8, 11), (9, 19), (9, 19), (16, 19)]
COLUMNS = [(0, 12), (0, 3), (9, 12), (0, 12), (0, 3), (9, 12), (0, 12)]


def _shapes() -> Tensor:
    """The ten digits, [10, 19, 12], of zeros and ones."""
    segments = torch.zeros(7, 19, 12)
    for segment, rows, columns in zip(segments, ROWS, COLUMNS, strict=True):
        segment[slice(*rows), slice(*columns)] = 1
    lit = torch.tensor([[int(n) for n in line.split()] for line in LIT.splitlines()])
    return (lit[:, :, None, None] * segments).amax(1)


SHAPES = _shapes()


def digits(key: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Images [n, 28, 28] of zeros and ones, each with a digit somewhere; and the digits [n]."""
    which, place = xf.random.split(key)
    labels = xf.random.randint(which, (n,), 0, 10)
    corners = xf.random.randint(place, (n, 2), 2, 8) + torch.tensor([0, 4])

    def draw(label: Tensor, corner: Tensor) -> Tensor:
        return xf.dynamic_update_slice(torch.zeros(28, 28), SHAPES[label], (corner[0], corner[1]))

    return xf.vmap(draw)(labels, corners), labels.long()
