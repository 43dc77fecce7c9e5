"""The multilayer perceptron of several examples."""

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

import xfunc as xf

Params = list[tuple[Tensor, Tensor]]  # weight and bias of each layer


def init(key: Tensor, *sizes: int) -> Params:
    """Random weights of layers between these numbers of features."""
    pairs = list(itertools.pairwise(sizes))
    keys = xf.random.split(key, len(pairs))
    return [
        (xf.random.normal(k, (m, n)) / m**0.5, torch.zeros(n))
        for k, (m, n) in zip(keys, pairs, strict=True)
    ]


def perceptron(
    params: Params, x: Tensor, activation: Callable[[Tensor], Tensor] = torch.tanh
) -> Tensor:
    """The outputs [..., features]; the last layer is linear."""
    *hidden, (weight, bias) = params
    for w, b in hidden:
        x = activation(x @ w + b)
    return x @ weight + bias
