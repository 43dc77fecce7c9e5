"""Tensors of the CPU that a compiled function holds, and their gradients."""

import pytest
import torch

import xfunc as xf


def tensors(**options) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(3, 4, generator=generator, **options) for _ in range(3)]


def loss(a, b, c):
    return ((a @ b.mT).sin() * (c @ c.mT)).sum()


@pytest.mark.parametrize("watched", [(), (0,), (1, 2), (0, 1, 2)])
def test_captured_tensor_gradients_return_to_cpu(watched):
    held, plain = tensors(), tensors()
    for k in watched:
        held[k].requires_grad_()
        plain[k].requires_grad_()
    f = xf.jit(lambda scale: loss(*held) * scale)
    traces = []
    for _ in range(2):  # a first call, and one that only runs
        found, expected = f(torch.tensor(2.0)), loss(*plain) * 2
        torch.testing.assert_close(found.cpu(), expected)
        if watched:
            found.sum().backward()
            expected.backward()
        traces.append(xf.trace_count(f))
    for h, p in zip(held, plain, strict=True):
        assert (h.grad is None) == (p.grad is None)
        if h.grad is not None:
            assert h.grad.device.type == "cpu"
            torch.testing.assert_close(h.grad, p.grad)
    assert traces[0] == traces[1]


def test_captured_tensor_second_derivatives():
    a, b, c = (t.double().requires_grad_() for t in tensors())
    f = xf.jit(lambda: loss(a, b, c))

    def hessian_vector(value):
        (first,) = torch.autograd.grad(value, [a], create_graph=True)
        return torch.autograd.grad(first.square().sum(), [a, c])

    for found, expected in zip(hessian_vector(f()), hessian_vector(loss(a, b, c)), strict=True):
        torch.testing.assert_close(found, expected)


def test_captured_tensor_twice_or_unused():
    a, b, _ = tensors()
    a.requires_grad_()
    b.requires_grad_()
    same = a
    f = xf.jit(lambda: (a * same).sum() + 0 * b.detach().sum())
    f().backward()
    torch.testing.assert_close(a.grad, 2 * a.detach())
    assert b.grad is None


def test_captured_views_conjugates_and_scalars():
    z = torch.randn(2, 3, dtype=torch.complex64, generator=torch.Generator().manual_seed(1))
    z.requires_grad_()
    n = torch.tensor(3.0, requires_grad=True)

    def held(function):
        conjugate = z.conj().mT
        return function(lambda: (conjugate * n).abs().square().sum())

    found = torch.autograd.grad(held(xf.jit)(), [z, n])
    expected = torch.autograd.grad(held(lambda g: g)(), [z, n])
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y)


def test_captured_tensor_under_no_grad():
    a, b, _ = tensors()
    a.requires_grad_()
    b.requires_grad_()
    f = xf.jit(lambda: a + b)
    with torch.no_grad():
        assert not f().requires_grad
    assert f().requires_grad
