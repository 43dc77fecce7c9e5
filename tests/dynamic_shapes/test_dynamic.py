import re

import numpy as np
import pytest
import torch

import xfunc as xf
from xfunc.errors import ShapeError, TreeMismatchError, UnsupportedOpError

B, S = xf.Dim("B", max=8), xf.Dim("S", max=64)


def mean_of_squares(x):
    return (x**2).mean()


@pytest.mark.quick
def test_dynamic_shapes_unseen_size_is_not_compiled():
    traces = 0

    def f(batch):
        nonlocal traces
        traces += 1
        return {"loss": (batch["x"] @ batch["w"]).softmax(0).var(), "rows": batch["x"].sum(1)}

    dims = ({"x": (S, None)},)
    jitted = xf.jit(f, dynamic_shapes=dims, buckets=[16, 64])
    w = torch.randn(4, 3)
    for n in (11, 40):
        jitted({"x": torch.randn(n, 4), "w": w})
    before, info = traces, jitted.cache_info()
    for n in range(2, 65):
        x = torch.randn(n, 4)
        got = jitted({"x": x, "w": w})
        torch.testing.assert_close(got["loss"].cpu(), (x @ w).softmax(0).var())
        torch.testing.assert_close(got["rows"].cpu(), x.sum(1))
    assert traces == before
    assert jitted.cache_info()[2:4] == info[2:4]
    assert jitted.cache_info().compiles == 2
    text = jitted.explain()
    assert "bucket S<=16: 16 calls, one program, 2 masks" in text, text
    assert "bucket S<=64: 49 calls, one program" in text, text


@pytest.mark.parametrize(
    "buckets", [{B: [8], "S": [16, 64]}, {B: (8,), S: (16, 64)}, ((8,), (16, 64)), [[8], [16, 64]]]
)
def test_dynamic_shapes_buckets_of_several_dims(buckets):
    jitted = xf.jit(mean_of_squares, dynamic_shapes=((B, S),), buckets=buckets)
    for b, s in ((3, 5), (8, 12), (2, 64)):
        x = torch.randn(b, s)
        torch.testing.assert_close(jitted(x).cpu(), mean_of_squares(x))
    found = [line.partition(":")[0] for line in jitted.explain().splitlines()[2:]]
    assert found == ["bucket B<=8, S<=16", "bucket B<=8, S<=64"]


def test_dynamic_shapes_default_buckets_are_powers_of_two():
    jitted = xf.jit(mean_of_squares, dynamic_shapes=((S,),))
    for n in (5, 8, 7, 33, 64, 1):
        x = torch.randn(n)
        torch.testing.assert_close(jitted(x).cpu(), mean_of_squares(x))
    found = [line.partition(":")[0] for line in jitted.explain().splitlines()[2:]]
    assert found == ["bucket S<=1", "bucket S<=8", "bucket S<=64"]


@pytest.mark.quick
@pytest.mark.parametrize(
    ("spec", "make"),
    [
        (((B, S),), lambda b, s: [torch.randn(b, s)]),
        ({"x": (B, S)}, lambda b, s: [torch.randn(b, s)]),
        (({1: S},), lambda b, s: [torch.randn(4, s)]),
        (((None, 2 * S),), lambda b, s: [torch.randn(4, 2 * s)]),
        (((B, 2 * S + 1),), lambda b, s: [np.random.randn(b, 2 * s + 1)]),
        (((B * S, 3), (B,)), lambda b, s: [torch.randn(b * s, 3), torch.randn(b)]),
    ],
)
def test_dynamic_shapes_declarations(spec, make):
    jitted = xf.jit(
        lambda x, y=None: torch.logsumexp(x, (0, 1)) + (0 if y is None else y.sum()),
        dynamic_shapes=spec,
    )
    for b, s in ((3, 5), (4, 7), (8, 64)):
        args = [torch.as_tensor(a) for a in make(b, s)]
        want = torch.logsumexp(args[0], (0, 1)) + sum(y.sum() for y in args[1:])
        torch.testing.assert_close(jitted(*args).cpu(), want)
    assert "one program" in jitted.explain()


def test_dynamic_shapes_prefix_and_static_arguments():
    def f(scale, batch, *, shift):
        return scale * (batch[0] * batch[1]["y"]).sum() + shift

    jitted = xf.jit(f, static_argnums=0, dynamic_shapes=(None, (S,)))
    for n in (5, 6):
        a, b = torch.randn(n), torch.randn(n)
        got = jitted(2, (a, {"y": b}), shift=torch.tensor(1.0))
        torch.testing.assert_close(got.cpu(), 2 * (a * b).sum() + 1)
    assert jitted.cache_info().compiles == 1


def test_dynamic_shapes_donated_state():
    def step(state, x):
        return state + x.sum(0), x.mean()

    jitted = xf.jit(step, donate_argnums=0, dynamic_shapes=(None, (S, None)), buckets=[32])
    state, want = torch.zeros(3), torch.zeros(3)
    for n in (4, 9, 32):
        x = torch.randn(n, 3)
        state, mean = jitted(state, x)
        want = want + x.sum(0)
        torch.testing.assert_close(mean.cpu(), x.mean())
    torch.testing.assert_close(state.cpu(), want)
    assert jitted.cache_info().compiles == 1


def test_dynamic_shapes_captured_value_changed():
    scale = [2.0]
    jitted = xf.jit(lambda x: x.sum() * scale[0], dynamic_shapes=((S,),), buckets=[16])
    x = torch.randn(5)
    torch.testing.assert_close(jitted(x).cpu(), x.sum() * 2)
    scale[0] = 3.0
    torch.testing.assert_close(jitted(x).cpu(), x.sum() * 3)
    torch.testing.assert_close(jitted(x[:3]).cpu(), x[:3].sum() * 3)


def test_dynamic_shapes_branch_on_size_traces_each_bucket():
    def f(x):
        return x.cumsum(0) if x.shape[0] <= 32 else x.flip(0) - x.mean()

    jitted = xf.jit(f, dynamic_shapes=((S,),), buckets=[16, 24, 48, 64])
    for n in (9, 30, 40, 50, 60):
        x = torch.randn(n)
        torch.testing.assert_close(jitted(x).cpu(), f(x))
    text = jitted.explain()
    assert "bucket S<=48: 2 calls, a program for each exact shape: another program" in text
    assert "S<=64: 2 calls, one program, 1 masks, 14% padding, traced for this bucket" in text


def test_dim_captured_tensor_differs_by_size():
    tables = {n: torch.full((2,), float(n)) for n in range(65)}
    jitted = xf.jit(lambda x: x.sum() + tables[x.shape[0]], dynamic_shapes=((S,),), buckets=[64])
    for n in (5, 9):
        assert jitted(torch.ones(n)).tolist() == [2.0 * n, 2.0 * n]
    assert "it uses another tensor from outside for other sizes" in jitted.explain()
    numbers = xf.jit(
        lambda x: x.sum() + torch.tensor([x.shape[0] ** 2, 7]), dynamic_shapes=((S,),), buckets=[64]
    )
    for n in (5, 9):
        assert numbers(torch.ones(n)).tolist() == [n + n**2, n + 7]


@pytest.mark.parametrize(
    "f",
    [
        torch.linalg.cholesky,
        lambda x: torch.linalg.eigvalsh(x),
        lambda x: torch.linalg.solve(x, x[..., :1]),
        lambda x: torch.fft.rfft(x).abs(),
        lambda x: x.sort(-1)[0],
        lambda x: torch.linalg.inv(x).sum(0),
    ],
)
def test_dynamic_shapes_batches_of_matrices(f):
    jitted = xf.jit(f, dynamic_shapes=((B, None, None),), buckets=[8])
    for n in (3, 5):
        a = torch.randn(n, 3, 3, dtype=torch.float64)
        x = a @ a.mT + 3 * torch.eye(3, dtype=torch.float64)
        torch.testing.assert_close(jitted(x).cpu(), f(x))


def test_dynamic_shapes_exact_in_transforms_and_autograd():
    jitted = xf.jit(mean_of_squares, dynamic_shapes=((S,),), buckets=[16])
    x = torch.randn(5)
    torch.testing.assert_close(xf.grad(jitted)(x).cpu(), 2 * x / 5)
    torch.testing.assert_close(xf.vmap(jitted)(torch.stack([x, x])).cpu(), (x**2).mean().expand(2))
    watched = x.clone().requires_grad_()
    jitted(watched).backward()
    torch.testing.assert_close(watched.grad, 2 * x / 5)
    assert "autograd watched an argument" in jitted.explain()
    torch.testing.assert_close(jitted(x).cpu(), (x**2).mean())


def test_dynamic_shapes_error_at_other_size_is_ignored():
    def f(x):
        if x.shape[0] > 10:
            raise ValueError("too long")
        return x.sum()

    limited = xf.jit(f, dynamic_shapes=((S,),), buckets=[16], memory_limit=2**20)
    for jitted in (xf.jit(f, dynamic_shapes=((S,),), buckets=[16]), limited):
        for _ in range(2):
            assert jitted(torch.ones(5)).item() == 5
        assert "it cannot be traced at S=16: too long" in jitted.explain() or jitted is limited
        with pytest.raises(ValueError, match="too long"):
            jitted(torch.ones(11))
    product = xf.jit(lambda w, x: w @ x, dynamic_shapes=(None, (None, S)), buckets=[16])
    with pytest.raises(RuntimeError, match=r"f32\[4,5\]|3x3 and 4x5"):  # and not the bucket's size
        product(torch.ones(3, 3), torch.ones(4, 5))


def test_dynamic_shapes_explain_counts_calls_of_the_user_only():
    jitted = xf.jit(mean_of_squares, dynamic_shapes=((S,),), buckets=[16, 64])
    jitted.clear_cache()  # Functions of one skeleton share theirs.
    for n in (5, 6, 7):
        jitted(torch.ones(n))
    info = jitted.cache_info()
    assert info.misses == 1
    assert info.traces > 3  # the sizes that it was tried at
    assert "last miss: first call" in jitted.explain()
    jitted(torch.ones(17))
    assert jitted.cache_info().misses == 2
    assert "last miss: x changed from float32[16] to float32[64]" in jitted.explain()


def test_dynamic_shapes_explain_names_line_of_error_at_other_size():
    def f(x):
        return x.reshape(-1, 5).sum(1)

    jitted = xf.jit(f, dynamic_shapes=((S,),), buckets=[16])
    assert jitted(torch.ones(10)).tolist() == [5, 5]
    found = re.search(r"cannot be traced at S=16: .*, at (\S+):(\d+) in f", jitted.explain())
    assert found is not None, jitted.explain()
    assert found[1] == __file__
    assert int(found[2]) == f.__code__.co_firstlineno + 1


def test_dynamic_shapes_captured_tensor_requires_grad():
    held = torch.ones(3, requires_grad=True)
    jitted = xf.jit(lambda x: x.sum() * held.sum(), dynamic_shapes=((S,),))
    for _ in range(2):
        (gradient,) = torch.autograd.grad(jitted(torch.ones(5)), held)
        assert gradient.tolist() == [5, 5, 5]
    assert "autograd watched" in jitted.explain()
    with torch.no_grad():
        assert jitted(torch.ones(5)).item() == 15


def test_dynamic_shapes_changes_between_calls_of_one_shape():
    scale, weight = [1.0], torch.ones(3)
    jitted = xf.jit(lambda x: x.sum() * scale[0] + weight.sum(), dynamic_shapes=((S,),))
    watched = torch.ones(5, requires_grad=True)
    assert [jitted(torch.ones(5)).item() for _ in range(2)] == [8, 8]
    scale[0] = 2.0
    assert [jitted(torch.ones(5)).item() for _ in range(2)] == [13, 13]
    weight.mul_(2)
    assert jitted(torch.ones(5)).item() == 16
    jitted(watched).backward()
    assert watched.grad is not None
    assert watched.grad.tolist() == [2] * 5
    with pytest.raises(UnsupportedOpError, match="meta device"):
        jitted(torch.ones(5, device="meta"))
    stacked = xf.vmap(jitted)(torch.ones(2, 5))
    assert stacked.tolist() == [16, 16]
    assert jitted(torch.ones(5)).item() == 16


T = xf.Dim("T", min=4, max=16, multiple_of=4)
ERRORS = {
    "too large": (((S,),), None, (torch.ones(65),), ShapeError,
                  "dimension 0 of x of f is 65, which is declared as S; S is at most 64"),
    "too small": (((T,),), None, (torch.ones(2),), ShapeError, "T is a multiple of 4"),
    "below the minimum": (((xf.Dim("S", min=8),),), None, (torch.ones(4),), ShapeError,
                          "S is at least 8"),
    "no multiple": (((T,),), None, (torch.ones(6),), ShapeError, "Hint: pad it to 8"),
    "an empty batch": (((S,),), None, (torch.ones(0),), ShapeError, "as S: it is empty"),
    "two that disagree": (((S,), (S,)), None, (torch.ones(5), torch.ones(6)), ShapeError,
                          "dimension 0 of y of f is 6 where S is declared, but dimension 0 of x"),
    "nobody says": (((B * S,),), None, (torch.ones(6),), ShapeError,
                    "no argument of f determines B"),
    "not whole": (((2 * S,),), None, (torch.ones(5),), ShapeError, "but S would not be an integer"),
    "no multiple, too large": (((T,),), None, (torch.ones(17),), ShapeError, "T is at most 16"),
    "no data": (((S,),), None, (torch.ones(5, device="meta"),), UnsupportedOpError, "meta device"),
    "a sparse tensor": (((S, S),), None, (torch.eye(5).to_sparse(),), UnsupportedOpError,
                        "its layout torch.sparse_coo is not supported"),
    "another rank": (((B, S),), None, (torch.ones(5),), ShapeError, "has 1 dimensions"),
    "another constant": (((S, 3),), None, (torch.ones(5, 4),), ShapeError, "is 4 where 3"),
    "no prefix": (({"a": (S,)},), None, (torch.ones(5),), TreeMismatchError, "for an array"),
    "an unknown part": (({"b": (S,)},), None, ({"a": torch.ones(5)},), TreeMismatchError,
                        "has 'b', which is not one of"),
    "too many": (((S,), (S,), None), None, (torch.ones(5),), TreeMismatchError,
                 "has more entries (3) than there are positional arguments (1)"),
    "an unknown name": ({"z": (S,)}, None, (torch.ones(5),), TreeMismatchError, "names 'z'"),
    "beyond the buckets": (((S,),), [8, 16], (torch.ones(17),), ShapeError, "largest bucket"),
    "no bucket": (((S,),), [8, 128], (torch.ones(5),), ValueError, "128 is a bucket of f"),
    "one list for two": (((B, S),), [8], (torch.ones(5, 5),), ValueError, "there are several Dims"),
    "two lists for one": (((S,),), [[8], [8]], (torch.ones(5),), ValueError, "has 2 lists"),
    "buckets of another": (((S,),), {"Q": [8]}, (torch.ones(5),), ValueError, "'Q', which is no"),
    "two of a name": (((S,), (xf.Dim("S"),)), None, (torch.ones(5), torch.ones(5)), ValueError,
                      "there are two different Dims named 'S'"),
}  # fmt: skip


def f(x, y=None):
    return (x["a"] if isinstance(x, dict) else x).sum()


@pytest.mark.parametrize("name", ERRORS)
def test_dynamic_shapes_errors_name_size(name):
    spec, buckets, args, kind, text = ERRORS[name]
    jitted = xf.jit(f, dynamic_shapes=spec, buckets=buckets)
    with pytest.raises(kind, match=re.escape(text)) as caught:
        jitted(*args)
    assert "Hint: " in str(caught.value)
    good = xf.jit(f, dynamic_shapes=((S,),), buckets=[8, 16])
    assert good(torch.ones(5)).item() == 5


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda: xf.Dim("2S"), ValueError, "a Dim was given the name '2S'"),
        (lambda: xf.Dim("S", min=0), ValueError, "was given min=0"),
        (lambda: xf.Dim("S", max=True), ValueError, "was given max=True"),
        (lambda: xf.Dim("S", min=5, max=7, multiple_of=8), ValueError, "no multiple of 8"),
        (lambda: S // 2, ValueError, "declare the dimension with multiple_of=2"),
        (lambda: S // 0, TypeError, "S is divided by 0"),
        (lambda: S**0, TypeError, "S is raised to 0"),
        (lambda: S / 2, TypeError, "sizes are whole: use //"),
        (lambda: range(S), TypeError, "the size S is symbolic"),
        (lambda: xf.jit(torch.sin, dynamic_shapes="S"), TreeMismatchError, "sin is 'S'"),
        (lambda: xf.jit(torch.sin, dynamic_shapes=S), TreeMismatchError, "dynamic_shapes of sin"),
        (lambda: S + 0.5, TypeError, "unsupported operand"),
        (lambda: xf.jit(torch.sin, buckets=[8]), ValueError, "declare dynamic_shapes"),
        (lambda: xf.jit(torch.sin, dynamic_shapes=((S,),), buckets=[]), ValueError, "give a list"),
    ],
)
def test_dim_and_dynamic_shapes_invalid_raise(make, kind, text):
    with pytest.raises(kind, match=text):
        make()


def test_make_hlo_and_eval_shape_with_dims():
    def f(x, table):
        return {"next": table[: x.shape[1] - 1] + x[:, 1:, None], "flat": x.reshape(-1)}

    x, table = xf.ShapeDtypeStruct((B, S), torch.float32), torch.zeros(64, 16)
    text = str(xf.make_hlo(f)(x, table))
    assert "f32[B,S-1,16]" in text
    assert "slice={[0:B], [1:S]}" in text
    assert "[5," not in text
    found = xf.eval_shape(f, x, table)
    assert found["next"].shape == (B, S - 1, 16)
    assert str(found["flat"]) == "float32[B*S]"
    even = xf.Dim("S", max=64, multiple_of=2)

    def half(x):
        return x[: x.shape[0] // 2]

    halved = xf.eval_shape(half, xf.ShapeDtypeStruct((even,), torch.int64))
    assert halved.shape == (even // 2,)
    with pytest.raises(ShapeError, match="not polynomials in S"):
        xf.eval_shape(half, xf.ShapeDtypeStruct((S,), torch.int64))
    with pytest.raises(ShapeError, match="is not one program for all sizes: another program"):
        xf.make_hlo(lambda x: x.sin() if x.shape[0] % 2 else x)(
            xf.ShapeDtypeStruct((S,), torch.float32)
        )


@pytest.mark.parametrize("dim", [1, 2])
def test_dim_sort_along_another_dimension_is_one_program(dim):
    s = xf.Dim("S", max=8)
    spec = ((s, None, None),)
    f = xf.jit(lambda x: torch.sort(x, dim=dim, stable=True), dynamic_shapes=spec, buckets=[8])
    f.clear_cache()
    for n in (2, 5, 8):
        x = torch.randn(n, 3, 4).round()
        for found, wanted in zip(f(x), torch.sort(x, dim=dim, stable=True), strict=True):
            assert torch.equal(found.cpu(), wanted)
    assert "3 calls, one program" in f.explain(), f.explain()
