"""Functions of a `TestCase`: its runner, through which all tests are reached, does not count."""

from __future__ import annotations

import unittest

import torch

import xfunc as xf


class _Case(unittest.TestCase):
    scale = 2.0

    def test_scale(self) -> None:
        runner: list[object] = [[i] for i in range(1_000_001)]
        vars(self)["_outcome"].everything = runner  # more objects than a function may hold
        f = xf.jit(lambda x: x * self.scale)
        assert f(torch.ones(1)).item() == 2
        self.scale = 3.0
        assert f(torch.ones(1)).item() == 3
        del vars(self)["_outcome"].everything


def test_jit_of_function_that_closes_over_a_test_case() -> None:
    found = unittest.TextTestRunner().run(_Case("test_scale"))
    assert found.wasSuccessful()
