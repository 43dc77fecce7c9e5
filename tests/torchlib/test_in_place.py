"""Changes in place, and what shares memory with what, as in plain torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import xfunc as xf

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
def test_results_share_memory_with_nothing(
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
def test_slices_that_reach_beyond_the_beginning(bounds: tuple[int | None, int | None]) -> None:
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
def test_a_view_returned_after_its_base_was_changed(view: Callable[[Tensor], Tensor]) -> None:
    """It is made again while the program is lowered, which ended the process."""

    def fun(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        v = view(y)
        y[1] = 7
        y.mul_(3)
        return v, y

    torch.testing.assert_close(xf.device_get(xf.jit(fun)(M)), fun(M))


def test_a_complex_array_seen_as_real() -> None:
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
def test_the_tangent_of_a_copy_is_a_copy(copy: Callable[..., Tensor]) -> None:
    def fun(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        z = copy(y, 0) if copy is torch.unsqueeze_copy else copy(y)
        z.mul_(3)
        return y, z

    got = xf.jvp(fun, (M,), (M.sin(),))
    torch.testing.assert_close(xf.device_get(got), (fun(M), fun(M.sin())))  # It is linear.


@pytest.mark.parametrize("rest", [lambda x: x % 2, torch.frac, lambda x: torch.fmod(x, 2)])
def test_a_remainder_has_a_tangent_of_its_own(rest: Callable[[Tensor], Tensor]) -> None:
    def fun(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        z = rest(y)
        z.mul_(3)
        return y, z

    t = M.sin()
    got = xf.jvp(fun, (M,), (t,))
    torch.testing.assert_close(xf.device_get(got), (fun(M), (2 * t, 6 * t)))


@pytest.mark.filterwarnings("error")
def test_masked_scatter_in_place_in_a_hessian() -> None:
    mask = torch.tensor([True, False, True])

    def fun(x: Tensor) -> Tensor:
        y = x % 0.5
        y.masked_scatter_(mask, x.clone())
        return y.sin().sum() + x.sin().sum()

    x = torch.tensor([1.5625, 0.0625, 1.1875], dtype=torch.float64)
    h = 1e-5  # torch's own jacfwd of a gradient is wrong here.
    gradient = torch.func.grad(fun)
    want = [(gradient(x + h * e) - gradient(x - h * e)) / (2 * h) for e in torch.eye(3)]
    for hessian in (xf.hessian(fun), xf.jacrev(xf.grad(fun))):
        torch.testing.assert_close(hessian(x).cpu(), torch.stack(want), rtol=1e-7, atol=1e-9)


# -- operations -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.lerp_(M.double(), 0.5),
        lambda x: x.lerp_(M.double(), M.double().cos()),
        lambda x: x.polygamma_(1),
        lambda x: x.add_(x * 3, alpha=2),
        lambda x: x.index_put_((torch.tensor([0, 1, 0]),), x[0] * 2, accumulate=True),
        lambda x: torch.mul(x, M, out=x),
        lambda x: torch.cumsum(x, 0, out=x),
        lambda x: torch.where(x > 1, x, x * 2, out=x),
    ],
)
def test_changes_have_derivatives(change: Callable[[Tensor], Any]) -> None:
    """Next to the same change without a transform, by differences."""

    def fun(x: Tensor) -> Tensor:
        y = x.clone()
        change(y)
        return y

    wide, step = M.double() + 0.1, 1e-6
    direction = wide.cos()
    value, slope = xf.device_get(xf.jvp(fun, (wide,), (direction,)))
    want = (fun(wide + step * direction) - fun(wide - step * direction)) / (2 * step)
    torch.testing.assert_close(value, fun(wide))
    torch.testing.assert_close(slope, want, atol=1e-6, rtol=1e-6)
    (back,) = xf.vjp(fun, wide)[1](direction)
    torch.testing.assert_close((xf.device_get(back) * direction).sum(), (want * direction).sum())


def test_out_is_what_is_returned() -> None:
    def fun(x: Tensor) -> tuple[Tensor, ...]:
        values, places = torch.zeros(3), torch.zeros(3, dtype=torch.int64)
        found = torch.max(x, 0, out=(values, places))
        return values, places, found.values + 1, found.indices

    torch.testing.assert_close(xf.device_get(xf.jit(fun)(M)), fun(M))


def test_out_of_another_dtype_is_torchs_error() -> None:
    def fun(x: Tensor) -> Tensor:
        return torch.add(x, 1.5, out=torch.zeros(3, 3, dtype=torch.int64))

    with pytest.raises(RuntimeError, match="can't be cast"):
        xf.jit(fun)(M)


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.uint8, torch.bool])
@pytest.mark.parametrize("word", "sum nansum prod cumsum cumprod all any mean".split())
def test_a_reduction_into_another_dtype(word: str, dtype: torch.dtype) -> None:
    """torch computes some in the dtype of `out`, and lets others cast as nowhere else."""
    func = getattr(torch, word)

    def fun(x: Tensor) -> Tensor:
        out = torch.zeros(x.shape if word.startswith("cum") else (), dtype=dtype)
        return func(x, 0, out=out)

    given = [torch.tensor(1.5), torch.tensor([1.5, 0.5]), torch.tensor([3, 200], dtype=torch.uint8)]
    for x in [*given, torch.tensor([True, False]), torch.tensor([1.5 + 0.5j, 1j])]:
        try:
            want = fun(x)
        except (RuntimeError, IndexError):
            continue
        torch.testing.assert_close(xf.device_get(xf.jit(fun)(x)), want)


@pytest.mark.parametrize("shape", [(), (0,), (3,)])
def test_a_running_product_in_a_narrow_dtype(shape: tuple[int, ...]) -> None:
    x = torch.ones(shape)
    got = xf.jit(lambda x: torch.cumprod(x, 0, dtype=torch.int8))(x)
    torch.testing.assert_close(xf.device_get(got), torch.cumprod(x, 0, dtype=torch.int8))


def test_other_memory_under_vmap_is_refused() -> None:
    """torch.func leaves the tensor as it was, without an error."""
    with pytest.raises(xf.errors.UnsupportedOpError, match="gives a tensor other memory"):
        xf.vmap(lambda x: (x * 2).set_(torch.ones(3)))(M)


@pytest.mark.parametrize("word", ["t_", "squeeze_", "unsqueeze_", "transpose_"])
def test_a_view_that_changes_its_shape(word: str) -> None:
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


# -- vmap -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "write",
    [
        lambda z, a: z.add_(a),
        lambda z, a: z.__setitem__(0, a),
        lambda z, a: z.__setitem__(a > 0, 1.0),
        lambda z, a: torch.add(z, a, out=z),
        lambda z, a: z.index_put_((torch.tensor([0]),), a),
        lambda z, a: z.copy_(a),
    ],
)
def test_what_differs_between_examples_into_what_the_function_makes(
    write: Callable[[Tensor, Tensor], Any],
) -> None:
    def fun(a: Tensor) -> Tensor:
        z = torch.zeros(3)
        write(z, a)
        return z

    want = torch.stack([fun(a) for a in X])
    torch.testing.assert_close(xf.device_get(xf.vmap(fun)(X)), want)
    with pytest.raises(xf.errors.PurityError, match=r"that the mapped function did not make"):
        xf.jit(torch.func.vmap(fun))(X)


# -- forward mode of a part that has no floating result -------------------------------------------


@pytest.mark.parametrize("inner", [xf.checkpoint, xf.jit])
def test_jvp_of_a_part_without_floating_results(inner: Callable[..., Any]) -> None:
    def fun(x: Tensor) -> Tensor:
        return x * inner(lambda a, n: n + 1)(x, torch.arange(3)).sum()

    got = xf.jvp(fun, (X,), (X,))
    torch.testing.assert_close(xf.device_get(got), (X * 6, X * 6))


def _changed_after_use(x: Tensor) -> Tensor:
    y = x * 2
    z = xf.checkpoint(torch.sin)(y)
    y += 1
    return (y * z).sum()


def _with_other_memory(x: Tensor) -> Tensor:
    y = torch.ones(4) * 2
    y.set_(torch.cat([x, x]))  # pyright: ignore[reportArgumentType, reportCallIssue]
    return y.sum()


def _resized(x: Tensor) -> Tensor:
    y = x * 2
    return y.resize_(2, 2).sum()


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (lambda: xf.grad(_changed_after_use)(ONES), "is changed in place after it was used"),
        (lambda: xf.vmap(_with_other_memory)(ONES.expand(2, 4)), "gives a tensor other memory"),
        (lambda: xf.jvp(_resized, (ONES,), (ONES,)), "gives a tensor other memory"),
        (
            lambda: xf.jit(lambda x: torch.add(x.sum(), 1, out=x.clone()))(ONES),
            r"add gives float32\[\], but `out` has another shape \(float32\[4\]\)",
        ),
    ],
)
def test_changes_that_nothing_can_follow_are_refused_by_name(
    run: Callable[[], Any], says: str
) -> None:
    with pytest.raises(xf.errors.UnsupportedOpError, match=says):
        run()


ONES = torch.ones(4)


def test_an_example_without_dimensions_is_squeezed_in_place() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = xf.fori_loop(0, 2, lambda i, c: torch.tanh(x.clone()), torch.tanh(x))
        y.squeeze_()
        return y * 2

    x = torch.tensor(0.5)
    torch.testing.assert_close(xf.jacfwd(f)(x).cpu(), 2 - 2 * torch.tanh(x) ** 2)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "change",
    [
        lambda y: y.mul_(y),
        lambda y: y.div_(y.t()),
        lambda y: y.copy_(y * y),
        lambda y: y[0].mul_(y[0]),
        lambda y: y.__setitem__(0, y[1] * y[0]),
    ],
)
@pytest.mark.parametrize("transform", [lambda f: xf.grad(f), lambda f: xf.jit(xf.grad(f))])
def test_a_change_by_itself_that_nothing_reads_is_no_leak(
    change: Callable[[Tensor], Any], transform: Callable[[Any], Any]
) -> None:
    """What such a change keeps for its derivative is its own result: a cycle in C++."""

    def f(x: Tensor) -> Tensor:
        y = x * 2
        change(y)
        return (x * 3).sum()

    assert transform(f)(torch.ones(2, 2)).tolist() == [[3.0, 3.0], [3.0, 3.0]]


def test_a_change_by_itself_does_not_hide_a_leak() -> None:
    kept = []

    def f(x: Tensor) -> Tensor:
        y = x * 2
        y.mul_(y)
        kept.append(x * 4)
        return (x * 3).sum()

    with pytest.raises(xf.errors.LeakError, match="outlived its trace"):
        xf.grad(f)(torch.ones(2, 2))
    with pytest.raises(xf.errors.LeakError, match="outlived its trace"):
        kept[0].sin()


@pytest.mark.parametrize(
    "parts", [lambda y: y.unbind(0), lambda y: y.split(1), lambda y: torch.chunk(y, 2)]
)
def test_one_of_several_views_is_not_changed_where_it_is_differentiated(
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


def test_as_strided_beyond_an_example() -> None:
    """Here an example's elements lie apart."""
    x = torch.zeros(3, 2, 3)
    says = r"as_strided within vmap reads beyond(.|\n)*Hint: index the elements"
    with pytest.raises(xf.errors.UnsupportedOpError, match=says):
        xf.vmap(lambda a: torch.as_strided(a.t(), (2, 2), (4, 1), 1))(x)
