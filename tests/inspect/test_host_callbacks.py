"""`pure_callback` and `io_callback`: Python in the middle of a program."""

import numpy as np
import pytest
import torch

import xfunc as xf

X = torch.tensor([0.5, -1.0, 2.0])
LIKE = xf.ShapeDtypeStruct((3,), torch.float32)


def on_host(x):
    assert x.device.type == "cpu"
    return np.sinh(x.numpy())


def f(x, method: str | None = "sequential"):
    return 2 * xf.pure_callback(on_host, LIKE, x, vmap_method=method) + 1


def plain(x):
    return 2 * torch.sinh(x) + 1


ROWS = torch.stack([X, X + 1])
CASES = {
    "jit": (lambda: xf.jit(f)(X), plain(X)),
    "alone": (lambda: xf.pure_callback(on_host, X, X), torch.sinh(X)),
    "disable_jit": (lambda: eagerly(f), plain(X)),
    "scan": (lambda: xf.scan(lambda c, _: (f(c), None), X, length=2)[0], plain(plain(X))),
    "while_loop": (
        lambda: xf.while_loop(lambda s: s[0] < 2, lambda s: (s[0] + 1, f(s[1])), (0, X))[1],
        plain(plain(X)),
    ),
    "cond": (lambda: xf.cond(True, f, torch.neg, X), plain(X)),
    "checkpoint": (lambda: xf.checkpoint(f)(X), plain(X)),
    "sequential": (lambda: xf.vmap(f)(ROWS), plain(ROWS)),
    "expand_dims": (lambda: xf.vmap(lambda x: f(x, "expand_dims"))(ROWS), plain(ROWS)),
    "nested vmap": (
        lambda: xf.vmap(xf.vmap(lambda x: f(x, "broadcast_all")))(torch.stack([ROWS, -ROWS])),
        plain(torch.stack([ROWS, -ROWS])),
    ),
    "vmap of a scan": (
        lambda: xf.vmap(lambda x: xf.scan(lambda c, _: (f(c), None), x, length=2)[0])(ROWS),
        plain(plain(ROWS)),
    ),
    "tree": (
        lambda: xf.pure_callback(
            lambda t, k: {"n": 7, "s": t[0] * k}, {"n": torch.tensor(1), "s": X}, (X,), k=2.0
        )["s"],
        2 * X,
    ),
    "no arguments": (lambda: xf.jit(lambda x: x + xf.pure_callback(lambda: X, LIKE))(X), 2 * X),
    "a number": (lambda: xf.pure_callback(lambda x: 3, torch.tensor(0.0), X), torch.tensor(3.0)),
}  # fmt: skip


def eagerly(g):
    with xf.disable_jit():
        return g(X)


@pytest.mark.parametrize("name", CASES)
def test_pure_callback_results(name: str) -> None:
    got, want = CASES[name]
    torch.testing.assert_close(got().cpu(), want)


@pytest.mark.parametrize(("method", "shapes"), [
    ("sequential", [(3,), (3,)] * 2), ("expand_dims", [(2, 3), (1, 3)]),
    ("broadcast_all", [(2, 3), (2, 3)]),
])  # fmt: skip
def test_pure_callback_shapes_under_vmap(method, shapes) -> None:
    seen = []

    def add(x, y):
        seen.extend([tuple(x.shape), tuple(y.shape)])
        return x + y

    def call(x, y):
        return xf.pure_callback(add, LIKE, x, y, vmap_method=method)

    torch.testing.assert_close(xf.vmap(call, (0, None))(ROWS, X).cpu(), ROWS + X)
    assert seen == shapes


DTYPES = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
DTYPES += [torch.float16, torch.bfloat16, torch.float32, torch.float64]
DTYPES += [torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2]


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_pure_callback_dtypes(dtype) -> None:
    for shape in [(), (3,), (0, 2)]:
        x = torch.testing.make_tensor(shape, dtype=torch.float32, device="cpu").to(dtype)

        def call(x):
            return xf.pure_callback(torch.clone, x, x)

        with xf.disable_jit():
            want = call(x)
        found = xf.jit(call)(x).cpu()
        assert (found.dtype, found.shape) == (dtype, x.shape)
        bits = [t.flatten().view(torch.uint8).tolist() for t in (found, want)]
        assert bits[0] == bits[1]


def test_pure_callback_in_custom_jvp() -> None:
    @xf.custom_jvp
    def sinh(x):
        return xf.pure_callback(on_host, LIKE, x, vmap_method="expand_dims")

    sinh.defjvp(lambda xs, ts: (sinh(xs[0]), torch.cosh(xs[0]) * ts[0]))
    torch.testing.assert_close(xf.grad(lambda x: sinh(x).sum())(X).cpu(), torch.cosh(X))
    torch.testing.assert_close(xf.vmap(sinh)(ROWS).cpu(), torch.sinh(ROWS))


def test_io_callback_runs_once_per_call() -> None:
    log = []

    def note(x):
        log.append(x.tolist())
        return x.sum()

    @xf.jit
    def g(x):
        xf.io_callback(note, torch.tensor(0.0), x)  # nobody uses the result
        return x * 2 + xf.io_callback(note, torch.tensor(0.0), x)

    for i in range(2):
        assert g(X + i).tolist() == ((X + i) * 2 + (X + i).sum()).tolist()
    xf.block_until_ready(None)
    assert log == [X.tolist()] * 2 + [(X + 1).tolist()] * 2
    assert g.cache_info().traces == 1


def test_pure_callback_exception_propagates() -> None:
    def fails(x):
        raise ArithmeticError("of the callback")

    with pytest.raises(ArithmeticError, match="of the callback"):
        xf.block_until_ready(xf.jit(lambda x: xf.pure_callback(fails, LIKE, x))(X))
    torch.testing.assert_close(xf.jit(f)(X).cpu(), plain(X))


ERRORS = {
    "grad": (
        lambda: xf.grad(lambda x: f(x).sum())(X),
        xf.errors.UnsupportedOpError,
        "pure_callback of on_host: it is differentiated",
    ),
    "jvp": (lambda: xf.jvp(f, (X,), (X,)), xf.errors.UnsupportedOpError, "it is differentiated"),
    "vmap": (
        lambda: xf.vmap(lambda x: f(x, None))(ROWS),
        xf.errors.UnsupportedOpError,
        "it is batched(.|\n)*choose a vmap_method",
    ),
    "io under vmap": (
        lambda: xf.vmap(lambda x: xf.io_callback(on_host, LIKE, x))(ROWS),
        xf.errors.UnsupportedOpError,
        "io_callback of on_host: it is batched",
    ),
    "ordered": (
        lambda: xf.io_callback(on_host, LIKE, X, ordered=True),
        xf.errors.UnsupportedOpError,
        "ordered=True",
    ),
    "no result": (
        lambda: xf.io_callback(print, (), X),
        xf.errors.UnsupportedOpError,
        r"no result(.|\n)*xf\.debug\.callback",
    ),
    "method": (lambda: f(X, "legacy_vectorized"), ValueError, "vmap_method='legacy_vectorized'"),
    "shape": (
        lambda: xf.pure_callback(lambda x: x[:2], LIKE, X),
        xf.errors.TreeMismatchError,
        r"returned float32\[2\], not float32\[3\]",
    ),
    "dtype": (
        lambda: xf.pure_callback(lambda x: x.double(), LIKE, X),
        xf.errors.TreeMismatchError,
        r"returned float64\[3\], not float32\[3\]",
    ),
    "count": (
        lambda: xf.pure_callback(lambda x: (x, x), LIKE, X),
        xf.errors.TreeMismatchError,
        "returned 2 arrays, not 1",
    ),
    "no array": (
        lambda: xf.pure_callback(lambda x: "a", LIKE, X),
        TypeError,
        r"of .*<lambda> returned 'a' \(a str\), not float32\[3\](.|\n)*Hint: return tensors",
    ),
    "an object": (
        lambda: xf.io_callback(lambda x: [object()], [LIKE], X),
        TypeError,
        r"io_callback of .* \(an object\), not float32\[3\]",
    ),
    "like": (lambda: xf.pure_callback(on_host, (3,), X), TypeError, "3 .* result_shape_dtypes"),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_host_callback_errors(name: str) -> None:
    wrong, kind, match = ERRORS[name]
    with pytest.raises(kind, match=match):
        xf.block_until_ready(wrong())
