"""Prints and callbacks through every transform, and the search for NaNs."""

import concurrent.futures
import re

import pytest
import torch

import xfunc as xf

X = torch.arange(3.0)
XS = torch.arange(6.0).reshape(2, 3)
A, B = [0.0, 1.0, 2.0], [3.0, 4.0, 5.0]


class Log(list):
    """A function that notes in its log what it is called with."""

    def fun(self, x):
        xf.debug.callback(lambda x, **named: self.append(x.tolist()), x, name="x")
        return x * x

    def body(self, c, x):
        xf.debug.callback(lambda c, x: self.append((c.item(), x.item())), c, x)
        return c + x, c


def sums(fun):
    return lambda x: fun(x).sum()


CASES = {
    "jit": (lambda f: xf.jit(f), X, [A]),
    "nested jit": (lambda f: xf.jit(lambda x: xf.jit(f)(x) + xf.jit(f)(x + 3)), X, [A, B]),
    "grad": (lambda f: xf.grad(sums(f)), X, [A]),
    "jit of grad": (lambda f: xf.jit(xf.grad(sums(f))), X, [A]),
    "grad of jit": (lambda f: xf.grad(sums(xf.jit(f))), X, [A]),
    "hessian": (lambda f: xf.hessian(sums(f)), X, [A]),
    "jvp": (lambda f: lambda x: xf.jvp(f, (x,), (x,)), X, [A]),
    "vmap": (lambda f: xf.vmap(f), XS, [A, B]),
    "vmap of jit": (lambda f: xf.vmap(xf.jit(f)), XS, [A, B]),
    "jit of vmap": (lambda f: xf.jit(xf.vmap(xf.jit(f))), XS, [A, B]),
    "vmap of grad": (lambda f: xf.vmap(xf.grad(sums(f))), XS, [A, B]),
    "grad of vmap": (lambda f: xf.grad(lambda x: xf.vmap(f)(x).sum()), XS, [A, B]),
    "vmap over columns": (lambda f: xf.vmap(f, in_axes=1), XS.T, [A, B]),
    "vmap of vmap": (lambda f: xf.vmap(xf.vmap(f)), XS[None], [A, B]),
    "checkpoint": (lambda f: xf.grad(sums(xf.checkpoint(f))), X, [A]),
    "disable_jit": (lambda f: lambda x: eagerly(f, x), X, [A]),
    "no transform": (lambda f: f, X, [A]),
}


def eagerly(fun, x):
    with xf.disable_jit():
        return xf.jit(fun)(x)


@pytest.mark.parametrize("name", CASES)
def test_debug_callback_under_transforms(name):
    transform, x, want = CASES[name]
    log = Log()
    fun = transform(log.fun)
    fun(x)
    assert log == want
    fun(x)  # not traced again
    assert log == want + want


STEPS = [(0.0, 0.0), (0.0, 1.0), (1.0, 2.0)]
LOOPS = {
    "scan": (lambda b: lambda c: xf.scan(b, c, X), torch.tensor(0.0), STEPS),
    "reverse": (
        lambda b: lambda c: xf.scan(b, c, X, reverse=True),
        torch.tensor(0.0),
        [(0.0, 2.0), (2.0, 1.0), (3.0, 0.0)],
    ),
    "grad": (lambda b: xf.grad(lambda c: xf.scan(b, c, X)[0]), torch.tensor(0.0), STEPS),
    "jit of grad": (
        lambda b: xf.jit(xf.grad(lambda c: xf.scan(xf.jit(b), c, X)[0])),
        torch.tensor(0.0),
        STEPS,
    ),
    "vmap": (
        lambda b: xf.vmap(lambda c: xf.scan(b, c, X)[0]),
        torch.tensor([0.0, 10.0]),
        [*STEPS, (10.0, 0.0), (10.0, 1.0), (11.0, 2.0)],
    ),
    "scan of scan": (
        lambda b: lambda c: xf.scan(lambda c, _: (xf.scan(b, c, X)[0], None), c, length=2),
        torch.tensor(0.0),
        [*STEPS, (3.0, 0.0), (3.0, 1.0), (4.0, 2.0)],
    ),
    "no steps": (lambda b: lambda c: xf.scan(b, c, X[:0]), torch.tensor(0.0), []),
}


@pytest.mark.parametrize("name", LOOPS)
def test_debug_callback_in_loops(name):
    transform, c, want = LOOPS[name]
    log = Log()
    xf.jit(transform(log.body))(c)
    assert log == want


@pytest.mark.parametrize("name", [name for name in LOOPS if name != "vmap"])
def test_debug_callback_without_values_in_loops(name):
    transform, c, want = LOOPS[name]
    calls = []

    def body(c, x):
        xf.debug.callback(lambda: calls.append(1))
        return c + x, None

    xf.jit(transform(body))(c)
    assert len(calls) == len(want)


def test_debug_print(capsys):
    @xf.jit
    def fun(x):
        xf.debug.print("x={} mean={mean:.2f} {what}", x, mean=x.mean(), what="text")
        xf.debug.print("no tensors")

    fun(X)
    fun(X + 1)
    assert capsys.readouterr().out.splitlines() == [
        "x=tensor([0., 1., 2.]) mean=1.00 text",
        "no tensors",
        "x=tensor([1., 2., 3.]) mean=2.00 text",
        "no tensors",
    ]


def test_debug_callback_not_called_by_tracing():
    log = Log()
    assert xf.eval_shape(log.fun, X) == xf.ShapeDtypeStruct((3,), torch.float32)
    xf.jit(log.fun).lower(X).compile()
    assert log == []


def test_debug_print_leaves_results_unchanged():
    def plain(x):
        return {"a": x * 2, "b": (x.sum(), None)}

    def calling(x):
        xf.debug.print("{}", x)
        return plain(x)

    for transform in (xf.jit, xf.vmap):
        want, got = transform(plain)(XS), transform(calling)(XS)
        assert xf.tree.all(xf.tree.map(lambda a, b: torch.equal(a.cpu(), b.cpu()), want, got))


def test_debug_callback_exception_propagates():
    def refuse(x):
        raise KeyError(f"got {x.item()}")

    @xf.jit
    def fun(x):
        xf.debug.callback(refuse, x[1])
        return x

    for _ in range(2):
        with pytest.raises(KeyError, match=r"got 1\.0"):
            fun(X)
    assert torch.equal(xf.jit(torch.neg)(X).cpu(), -X)


def test_debug_callback_may_call_transforms():
    log = []
    xf.jit(lambda x: xf.debug.callback(lambda x: log.append(xf.jit(torch.sum)(x).item()), x))(X)
    assert log == [3.0]


@pytest.mark.parametrize(
    "fun",
    [
        lambda log, x: xf.cond(x.sum() > 0, log.fun, torch.neg, x),
        lambda log, x: xf.while_loop(lambda x: x.sum() < 9, log.fun, x),
    ],
)
def test_debug_callback_in_cond_or_while_is_refused(fun):
    log = Log()
    with pytest.raises(xf.errors.UnsupportedOpError, match="callback") as raised:
        xf.jit(lambda x: fun(log, x))(X)
    assert re.search(
        r"callback \(xf\.debug\) is in a branch, a while loop(.|\n)*"
        r"test_debug\.py:\d+ in fun(.|\n)*Hint: return the value",
        str(raised.value),
    )
    eagerly(lambda x: fun(log, x), X)
    assert log


@pytest.mark.parametrize(
    ("fmt", "args", "named"), [("{} {}", [X], {}), ("{x}", [], {"y": X}), ("{", [], {})]
)
def test_debug_print_wrong_format_raises(fmt, args, named):
    with pytest.raises(ValueError, match=r"debug.print was given .*does not fit its arguments"):
        xf.debug.print(fmt, *args, **named)


# -- NaNs -----------------------------------------------------------------------------------------


def logs(x):
    y = x * 2
    z = torch.log(y - 4)  # the line of log
    return {"z": z.sum()}


def roots(x):
    root = torch.sqrt(x)  # the line of sqrt
    return (root * 0).sum()


def steps(x):
    def body(c, x):
        return c / x * x, c  # the line of mul

    return xf.scan(body, x[1], x)


NANS = {
    "forward": (xf.jit(logs), r"result\['z'\] of logs", "log made the first\n", "log"),
    "captured": (
        xf.jit(lambda x: x + logs(X)["z"]),
        "result of .*",
        "log made the first\n",
        "log",
    ),
    "backward": (xf.grad(roots), r"result of grad\(roots\)", "div .* in the backward pass", "sqrt"),
    "jit of vmap of grad": (
        xf.jit(lambda x: xf.vmap(xf.grad(lambda x: roots(x[None])))(x)),
        "result of .*",
        "div .* in the backward pass",
        "sqrt",
    ),
    "scan": (steps, r"result.*", "mul made the first\n", "mul"),
}


@pytest.mark.parametrize("name", NANS)
def test_debug_nans_names_line(name):
    fun, result, operation, line = NANS[name]
    if name == "scan":
        fun = xf.jit(fun)
    fun(X)  # Outside of the block nothing is looked at; inside, nothing is traced again.
    with xf.debug.nans():
        with pytest.raises(FloatingPointError, match=result + " holds a NaN") as raised:
            fun(X)
        assert re.search(operation, str(raised.value))
        assert f"# the line of {line}" in str(raised.value)
        fun_of_good = xf.jit(logs)(X + 3)
    assert fun_of_good["z"].isfinite()
    fun(X)


def test_debug_nans_names_nan_argument():
    with xf.debug.nans(), pytest.raises(FloatingPointError, match=r"so does its argument 0\['a'\]"):
        xf.jit(lambda p: p["a"] * 2)({"a": X / 0 - X / 0})


DONATIONS = {
    "argument": ({"donate_argnums": 0}, lambda f: f),
    "named argument": ({"donate_argnames": "x"}, lambda f: f),
    "range of shapes": (
        {"donate_argnums": 0, "dynamic_shapes": ((xf.Dim("S", max=8),),)},
        lambda f: f,
    ),
    "scan inside": (
        {"donate_argnums": 0},
        lambda f: lambda x: xf.scan(lambda c, _: (c, f(c)), x, length=2)[1],
    ),
}


@pytest.mark.parametrize("name", DONATIONS)
def test_debug_nans_with_donated_arguments(name):
    settings, around = DONATIONS[name]
    fun = xf.jit(around(lambda x: {"z": torch.log(x - 3)}), **settings)
    bad, good = (xf.device_put(torch.arange(4.0) + n) for n in (0, 4))
    with xf.debug.nans():
        with pytest.raises(
            FloatingPointError, match=r"\['z'\] of .* holds a NaN; log made the first"
        ):
            fun(bad)
        torch.testing.assert_close(bad.cpu(), torch.arange(4.0))  # It was not taken over.
        assert fun(good)["z"].isfinite().all()
    if name != "range of shapes":  # A padded copy was donated in its place.
        with pytest.raises(RuntimeError, match="this tensor was donated"):
            good.cpu()
    other = xf.device_put(torch.arange(4.0))
    fun(other)
    if name != "range of shapes":
        with pytest.raises(RuntimeError, match="this tensor was donated"):
            other.cpu()


def test_debug_nans_with_an_argument_donated_twice():
    x = xf.device_put(torch.ones(3))
    with xf.debug.nans(), pytest.raises(ValueError, match="given one tensor twice"):
        xf.jit(lambda x, y: x + y, donate_argnums=0)(x, x)


def test_debug_nans_ignores_intermediate_nans():
    def masked(x):
        return torch.where(x > 0, torch.log(x - 1).nan_to_num(), 0.0)

    with xf.debug.nans():
        xf.jit(masked)(X)
        with xf.debug.nans(False):
            xf.jit(logs)(X)


def test_debug_infs_and_nans_find_their_own():
    divided = xf.jit(lambda a, b: {"z": a / b})
    zero, one = torch.zeros(()), torch.ones(())
    found = "result\\['z'\\] of .*<lambda> holds {}; div made the first"
    with xf.debug.infs():
        with pytest.raises(FloatingPointError, match=found.format("an infinity")):
            divided(one, zero)
        divided(zero, zero)
        with xf.debug.nans():
            with pytest.raises(FloatingPointError, match=found.format("a NaN")):
                divided(zero, zero)
            with pytest.raises(FloatingPointError, match=found.format("an infinity")):
                divided(-one, zero)
            with xf.debug.infs(False):
                assert divided(one, zero)["z"].isinf()
                with pytest.raises(FloatingPointError, match="a NaN"):
                    divided(zero, zero)
        divided(zero, zero)
    assert divided(one, zero)["z"].isinf()


def test_debug_infs_names_the_forward_line_and_the_argument():
    slope = xf.jit(xf.grad(lambda x: x.abs().sqrt().sum()))
    with xf.debug.infs():
        with pytest.raises(FloatingPointError, match=r"an infinity; .*in the backward pass"):
            xf.jit(xf.grad(lambda x: torch.sqrt(x).sum()))(torch.zeros(2))
        with pytest.raises(FloatingPointError, match="an infinity, and so does its argument 0"):
            xf.jit(lambda x: x * 2)(torch.tensor(torch.inf))
        assert slope(torch.ones(2)).tolist() == [0.5, 0.5]


def test_debug_nans_ignores_other_threads():
    with xf.debug.nans(), concurrent.futures.ThreadPoolExecutor(1) as pool:
        assert pool.submit(xf.jit(logs), X).result()["z"].isnan()


def test_debug_nans_search_repeats_no_callbacks():
    log = Log()
    with xf.debug.nans(), pytest.raises(FloatingPointError, match="log made the first"):
        xf.jit(lambda x: logs(log.fun(x)))(X)
    assert log == [A]


# -- checks ---------------------------------------------------------------------------------------


def checked(x):
    xf.debug.check(x < 4, "a value of {x} in {}", "x", x=x.max())
    return x * x


CHECKED = {
    "jit": (lambda f: xf.jit(f), X, X + 3, 5.0),
    "alone": (lambda f: f, X, X + 3, 5.0),
    "grad": (lambda f: xf.jit(xf.grad(sums(f))), X, X + 3, 5.0),
    "jvp": (lambda f: lambda x: xf.jvp(f, (x,), (x,)), X, X + 3, 5.0),
    "vmap": (lambda f: xf.jit(xf.vmap(f)), XS - 2, XS, 5.0),
    "scan": (lambda f: lambda x: xf.scan(lambda c, r: (c, f(r)), 0.0, x), XS - 2, XS + 1, 6.0),
}


@pytest.mark.parametrize("transform", CHECKED)
def test_check_raises_from_the_call_with_the_values(transform):
    make, good, bad, value = CHECKED[transform]
    run = make(checked)
    run(good)
    with pytest.raises(xf.errors.ExecutionError, match="a check failed") as caught:
        run(bad)
    problem, place, hint = str(caught.value).splitlines()
    assert problem == f"a check failed: a value of {value} in x"
    assert re.fullmatch(r"  at .*test_debug.py:\d+ in checked: xf.debug.check\(x < 4, .*", place)
    assert hint.startswith("Hint: the values are those of this call")
    run(good)


def test_check_of_a_format_that_does_not_fit():
    with pytest.raises(ValueError, match=r"debug.check was given '\{\}', which does not fit"):
        xf.debug.check(True, "{}")
