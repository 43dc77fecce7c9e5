"""Views, copies and results share memory as in plain torch, also after changes in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import xfunc as xf

pytestmark = pytest.mark.quick

Tensor = torch.Tensor
X = torch.tensor([0.5, 0.25, -1.0])
M = torch.tensor([[0.5, 0.25, 1.0], [1.0, 2.0, 4.0], [3.0, 1.0, 2.0]])


# -- what transforms return ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("transformed", "want"),
    [
        (lambda w: xf.vmap(lambda a: a)(w), X),
        (lambda w: xf.vmap(lambda a: w)(w), X.expand(3, 3)),
        (lambda w: xf.vmap(lambda a: a, out_axes=0)(w), X),
        (lambda w: xf.grad(lambda a: a.sum())(w), torch.ones(3)),
        (lambda w: xf.grad(lambda a: (a.sum(), a), has_aux=True)(w)[1], X),
        (lambda w: xf.vjp(lambda a: a, w)[0], X),
        (lambda w: xf.vjp(lambda a: a.sum(), w)[1](torch.ones(()))[0], torch.ones(3)),
        (lambda w: xf.jvp(lambda a: a, (w,), (w,))[0], X),
        (lambda w: xf.jvp(lambda a: a, (w,), (w,))[1], X),
        (lambda w: xf.jacrev(lambda a: a.sum())(w), torch.ones(3)),
        (lambda w: xf.linearize(lambda a: a, w)[0], X),
        (lambda w: xf.linearize(lambda a: a, w)[1](w), X),
        (lambda w: xf.jit(lambda a: a)(w), X),
        (lambda w: xf.checkpoint(lambda a: a)(w), X),
    ],
)
def test_transform_results_share_no_memory(
    transformed: Callable[[Tensor], Tensor], want: Tensor
) -> None:
    """A gradient may be one number seen many times, a result of vmap one example."""

    def fun(x: Tensor) -> tuple[Tensor, Tensor]:
        w = x.clone()
        result = transformed(w)
        result[0] = 7
        return w, result

    want = want.clone()
    want[0] = 7
    torch.testing.assert_close(xf.device_get(xf.jit(fun)(X)), (X, want))


# -- views --------------------------------------------------------------------------------------


@pytest.mark.parametrize("bounds", [(None, -4), (-5, 1), (-9, None), (-9, -5), (2, -9), (5, 9)])
def test_slice_beyond_the_beginning(bounds: tuple[int | None, int | None]) -> None:
    part = slice(*bounds)

    def fun(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = x.clone()
        y[part] = 9
        z = x.clone()[None]
        z[:, part] += 1
        return x[part], y, z

    torch.testing.assert_close(xf.device_get(xf.jit(fun)(X)), fun(X))


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.diagonal(), lambda x: x.unfold(0, 2, 1), lambda x: x.t(), lambda x: x[:, 1:],
        lambda x: x.as_strided((2, 2), (3, 1), 1), lambda x: x.expand(2, 3, 3), lambda x: x[1],
        lambda x: torch.view_as_real(x.to(torch.complex64)), lambda x: x.squeeze()[::2],
    ],
)  # fmt: skip
def test_view_returned_after_change_of_base(view: Callable[[Tensor], Tensor]) -> None:
    """It is made again while the program is lowered, which ended the process."""

    def fun(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        v = view(y)
        y[1] = 7
        y.mul_(3)
        return v, y

    torch.testing.assert_close(xf.device_get(xf.jit(fun)(M)), fun(M))


def test_view_as_real_permuted_and_changed() -> None:
    """torch_xla took its shape to be that of the complex one; to permute it ended the process."""

    def fun(x: Tensor) -> tuple[Tensor, ...]:
        w = x.clone()
        v = torch.view_as_real(w)
        v.transpose(0, 1).add_(1)
        v[..., 0] *= 2
        return w, v.t(), v.movedim(0, 1), torch.view_as_real(x[None]).permute(2, 0, 1)

    x = torch.tensor([1 + 2j, 3 - 4j, 0.5j])
    torch.testing.assert_close(xf.device_get(xf.jit(fun)(x)), fun(x))


@pytest.mark.parametrize(
    "copy",
    [
        torch.diag, torch.diagonal_copy, torch.t_copy, torch.unsqueeze_copy, torch.squeeze_copy,
        torch.alias_copy, lambda x, *a: torch.select_copy(x, 0, 1),
        lambda x, *a: torch.slice_copy(x, 0, 1, 3), lambda x, *a: torch.expand_copy(x, (2, 3, 3)),
        lambda x, *a: torch.narrow_copy(x, 0, 0, 2), lambda x, *a: torch.view_copy(x, (9,)),
    ],
)  # fmt: skip
def test_jvp_of_copy_shares_no_memory(copy: Callable[..., Tensor]) -> None:
    def fun(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        z = copy(y, 0) if copy is torch.unsqueeze_copy else copy(y)
        z.mul_(3)
        return y, z

    got = xf.jvp(fun, (M,), (M.sin(),))
    torch.testing.assert_close(xf.device_get(got), (fun(M), fun(M.sin())))  # It is linear.


@pytest.mark.parametrize("rest", [lambda x: x % 2, torch.frac, lambda x: torch.fmod(x, 2)])
def test_jvp_of_remainder_shares_no_memory(rest: Callable[[Tensor], Tensor]) -> None:
    def fun(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        z = rest(y)
        z.mul_(3)
        return y, z

    t = M.sin()
    got = xf.jvp(fun, (M,), (t,))
    torch.testing.assert_close(xf.device_get(got), (fun(M), (2 * t, 6 * t)))


@pytest.mark.parametrize("word", ["t_", "squeeze_", "unsqueeze_", "transpose_"])
def test_view_with_shape_changed_in_place(word: str) -> None:
    """Without derivatives it may; with them torch would forget the change."""
    more = {"unsqueeze_": (0,), "transpose_": (0, 1)}.get(word, ())

    def fun(x: Tensor) -> Tensor:
        y = x.clone()
        v = y[0:2]
        getattr(v, word)(*more)
        y *= 2
        return v * torch.arange(6.0).reshape(v.shape)

    torch.testing.assert_close(xf.device_get(xf.jit(fun)(M)), fun(M))
    with pytest.raises(xf.errors.UnsupportedOpError, match=rf"{word} changes the shape of a view"):
        xf.grad(lambda x: fun(x).sum())(M)
    assert xf.grad(lambda x: x.clone().unsqueeze_(0).sum())(X).tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "parts", [lambda y: y.unbind(0), lambda y: y.split(1), lambda y: torch.chunk(y, 2)]
)
def test_grad_of_change_to_one_of_several_views_is_refused(
    parts: Callable[[Tensor], Any],
) -> None:
    """As in torch; without derivatives, it is."""

    def f(x: Tensor) -> Tensor:
        y = x * 2
        parts(y)[0].sub_(2)
        return y.sum()

    x = torch.ones(2, 3)
    assert xf.jit(f)(x).item() == f(x).item()
    with pytest.raises(xf.errors.UnsupportedOpError, match=r"(?s)one of several views.*Hint"):
        xf.grad(f)(x)


def test_as_strided_beyond_an_example_under_vmap_is_refused() -> None:
    """Here an example's elements lie apart."""
    x = torch.zeros(3, 2, 3)
    says = r"as_strided within vmap reads beyond(.|\n)*Hint: index the elements"
    with pytest.raises(xf.errors.UnsupportedOpError, match=says):
        xf.vmap(lambda a: torch.as_strided(a.t(), (2, 2), (4, 1), 1))(x)
