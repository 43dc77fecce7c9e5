"""Control flow, beside composition (see test_pairs): counts, checks, edges."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import pytest
import torch

import xfunc as xf

pytestmark = pytest.mark.quick

X = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)


def _opcodes(fun: Any, *args: Any) -> list[str]:
    module = xf.make_hlo(fun)(*args)
    return [i.opcode for c in module.computations for i in c.instructions]


class TestCond:
    def test_traced_once_as_one_hlo_conditional(self) -> None:
        runs = []

        def double(x: torch.Tensor) -> torch.Tensor:
            runs.append("double")
            return x * 2

        def negate(x: torch.Tensor) -> torch.Tensor:
            runs.append("negate")
            return -x

        @xf.jit
        def choose(flag: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return xf.cond(flag, double, negate, x)

        for flag in (True, False, True):
            want = X * 2 if flag else -X
            torch.testing.assert_close(choose(torch.tensor(flag), X).cpu(), want)
        assert sorted(runs) == ["double", "negate"]
        assert _opcodes(choose, torch.tensor(True), X).count("conditional") == 1

    def test_batched_predicate_becomes_select(self) -> None:
        def f(flag: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return xf.cond(flag, torch.sin, torch.cos, x)

        flags = torch.tensor([True, False, True])
        batched = xf.vmap(f)
        got = batched(flags, X).cpu()
        torch.testing.assert_close(got, torch.where(flags, X.sin(), X.cos()))
        found = _opcodes(batched, flags, X)
        assert "conditional" not in found
        assert "select" in found

    def test_grad_of_chosen_branch_only(self) -> None:
        def safe(x: torch.Tensor) -> torch.Tensor:
            return xf.cond(x > 0, torch.log, torch.zeros_like, x)

        assert xf.grad(safe)(torch.tensor(-1.0)).item() == 0.0
        assert xf.grad(safe)(torch.tensor(4.0)).item() == 0.25

    def test_grad_branches_share_residuals(self) -> None:
        def loss(flag: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return xf.cond(flag, lambda y: y.sin().sin(), lambda y: y.cos().cos(), x).sum()

        module = xf.make_hlo(xf.grad(loss, argnums=1))(torch.tensor(True), X)
        calls = [i for c in module.computations for i in c.instructions]
        forward, *_ = [i for i in calls if i.opcode == "conditional"]
        # The output, and at most two values of the shape of x, whichever branch is taken.
        assert len(forward.shape.elements) <= 3

    def test_closures_numbers_and_trees(self) -> None:
        def f(n: torch.Tensor | int, x: torch.Tensor) -> Any:
            y = x * 2
            return xf.cond(
                n > 1, lambda: {"a": (x + y, 1), "b": None}, lambda: {"a": (y, 0), "b": None}
            )

        got = xf.device_get(xf.jit(f)(3, X))
        assert got["b"] is None
        assert got["a"][1].item() == 1
        torch.testing.assert_close(got["a"][0], X * 3)
        torch.testing.assert_close(f(torch.tensor(0), X)["a"][0].cpu(), X * 2)

    def test_number_as_predicate(self) -> None:
        ways: tuple[Any, Any] = (lambda: 1), (lambda: 0)
        assert xf.cond(2.0, *ways).item() == 1
        assert xf.cond(0, *ways).item() == 0

    def test_no_operands_and_no_outputs(self) -> None:
        assert xf.cond(True, lambda: None, lambda: None) is None

    def test_wrong_predicate_raises(self) -> None:
        with pytest.raises(TypeError, match=r"(?s)the predicate is bool\[3\], not a scalar.*Hint"):
            xf.cond(X > 0, torch.sin, torch.cos, X)
        with pytest.raises(TypeError, match=r"(?s)the predicate is a str"):
            xf.cond("yes", torch.sin, torch.cos, X)  # pyright: ignore[reportArgumentType, reportCallIssue]
        with pytest.raises(TypeError, match=r"(?s)not callable.*cond\(pred, f, g, x\)"):
            xf.cond(True, torch.sin(X), torch.cos(X))  # pyright: ignore[reportArgumentType, reportCallIssue]

    def test_differing_branches_raise(self) -> None:
        with pytest.raises(
            xf.errors.TreeMismatchError,
            match=r"(?s)the results of .* differ:\n  result\['a'\]: float64\[3\] instead of "
            r"float64\[\]\n.*test_control_flow\.py.*Hint: return the same",
        ):
            xf.cond(True, lambda x: {"a": x}, lambda x: {"a": x.sum()}, X)


class TestSwitch:
    def test_index_is_clamped(self) -> None:
        branches = [lambda x: x, lambda x: x * 10, lambda x: x * 100]
        f = xf.jit(lambda i, x: xf.switch(i, branches, x))
        for i, factor in ((-5, 1), (0, 1), (1, 10), (2, 100), (9, 100)):
            torch.testing.assert_close(f(torch.tensor(i), X).cpu(), X * factor)

    def test_single_branch(self) -> None:
        torch.testing.assert_close(xf.switch(3, [torch.sin], X).cpu(), X.sin())

    def test_batched_index_grad(self) -> None:
        def f(i: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return xf.switch(i, [torch.sin, torch.cos, lambda y: y**2], x)

        got = xf.vmap(xf.grad(f, argnums=1))(torch.tensor([0, 1, 2]), X).cpu()
        want = torch.stack([X[0].cos(), -X[1].sin(), 2 * X[2]])
        torch.testing.assert_close(got, want)

    def test_wrong_arguments_raise(self) -> None:
        with pytest.raises(ValueError, match=r"(?s)no branches.*Hint"):
            xf.switch(0, [], X)
        with pytest.raises(TypeError, match=r"(?s)the index is float64\[\], not an integer scalar"):
            xf.switch(X[0], [torch.sin, torch.cos], X)


class TestWhileLoop:
    def test_traced_once_as_one_hlo_while(self) -> None:
        runs = []

        def body(s: Any) -> Any:
            runs.append(1)
            return s[0] + 1, s[1] * 2

        @xf.jit
        def grow(x: torch.Tensor) -> Any:
            return xf.while_loop(lambda s: s[1].sum() < 100, body, (0, x))

        for start in (X, X + 1):
            n, last = xf.device_get(grow(start))
            want, steps = start, 0
            while want.sum() < 100:
                want, steps = want * 2, steps + 1
            assert n.item() == steps
            torch.testing.assert_close(last, want)
        assert len(runs) == 1
        assert _opcodes(grow, X).count("while") == 1

    def test_zero_steps(self) -> None:
        got = xf.while_loop(lambda x: x.sum() > 1e9, lambda x: x + 1, X)
        torch.testing.assert_close(got.cpu(), X)

    def test_vmap_freezes_finished_examples(self) -> None:
        """The body would turn a finished example into nan."""

        def f(x: torch.Tensor) -> Any:
            return xf.while_loop(
                lambda s: s[1] > 1, lambda s: (s[0] + 1, torch.sqrt(s[1] - 1)), (0, x)
            )

        steps, values = xf.device_get(xf.vmap(f)(torch.tensor([0.5, 3.0, 30.0])))
        assert not values.isnan().any()
        for i, x in enumerate((0.5, 3.0, 30.0)):
            n, value = xf.device_get(f(torch.tensor(x)))
            assert steps[i] == n
            torch.testing.assert_close(values[i], value)

    def test_vmap_carry_batched_after_some_steps(self) -> None:
        def f(x: torch.Tensor) -> Any:
            zero = torch.zeros((), dtype=x.dtype)
            start = (0, zero, zero, x)
            return xf.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[2], s[3], s[3]), start)

        _, a, b, _ = xf.device_get(xf.vmap(f)(X))
        torch.testing.assert_close(a, X)
        torch.testing.assert_close(b, X)

    def test_vmap_condition_batched_through_closure(self) -> None:
        def f(limit: torch.Tensor) -> torch.Tensor:
            return xf.while_loop(lambda n: n < limit, lambda n: n + 1, torch.tensor(0))

        assert xf.vmap(f)(torch.tensor([0, 3, 7])).tolist() == [0, 3, 7]

    def test_grad_is_refused_unless_stopped(self) -> None:
        def loop(x: torch.Tensor) -> torch.Tensor:
            return xf.while_loop(lambda y: y.sum() < 10, lambda y: y + 1, x)

        with pytest.raises(
            xf.errors.UnsupportedOpError,
            match=r"(?s)differentiate while_loop of .*test_control_flow\.py.*Hint: use xf\.scan",
        ):
            xf.grad(lambda x: loop(x).sum())(X)
        got = xf.grad(lambda x: (xf.stop_gradient(loop(x)) * x).sum())(X)
        torch.testing.assert_close(got, loop(X))
        got = xf.grad(lambda x: (x * loop(torch.ones_like(x))).sum())(X)
        assert (got >= 10 / 3).all()

    def test_wrong_functions_raise(self) -> None:
        with pytest.raises(
            TypeError, match=r"(?s)returned float64\[3\], not a boolean scalar.*any"
        ):
            xf.while_loop(lambda x: x, lambda x: x, X)
        with pytest.raises(
            xf.errors.TreeMismatchError,
            match=r"(?s)value\[1\]: float32\[\] instead of int64\[\].*Hint: return a value",
        ):
            xf.while_loop(lambda s: s[1] < 3, lambda s: (s[0], 1.5), (X, 0))

    @pytest.mark.parametrize("length", [None, 3])
    def test_state_without_elements(self, length: int | None) -> None:
        def loop(x: torch.Tensor) -> Any:
            state = (x, x + 1)
            return xf.while_loop(lambda s: (s[0] < 9).any(), lambda s: (s[1], s[0] * 2), state)

        def run(x: torch.Tensor) -> Any:
            if length is None:
                return loop(x)
            return xf.scan(lambda c, _: (loop(c)[1], None), x, None, length=length)

        nothing = torch.zeros(2, 0)
        for f, shape in ((run, (2, 0)), (xf.vmap(run), (2, 0)), (xf.vmap(run, 1), (0, 2))):
            assert xf.tree.leaves(xf.jit(f)(nothing))[0].shape == shape


class TestForiLoop:
    def test_python_bounds_grad(self) -> None:
        def f(x: torch.Tensor) -> torch.Tensor:
            return xf.fori_loop(2, 5, lambda i, y: y * i + x, x)

        want = X
        for i in range(2, 5):
            want = want * i + X
        torch.testing.assert_close(f(X).cpu(), want)
        got = xf.grad(lambda x: f(x).sum())(X).cpu()
        torch.testing.assert_close(got, torch.full_like(X, ((1 * 2 + 1) * 3 + 1) * 4 + 1))

    @pytest.mark.parametrize(("lo", "hi"), [(0, 0), (5, 2), (-3, -1)])
    def test_empty_and_negative_ranges(self, lo: int, hi: int) -> None:
        got = xf.fori_loop(lo, hi, lambda i, y: y + i, X).cpu()
        torch.testing.assert_close(got, X + sum(range(lo, hi)))

    def test_traced_bounds(self) -> None:
        f = xf.jit(lambda lo, hi, x: xf.fori_loop(lo, hi, lambda i, y: y + i, x))
        for lo, hi in ((0, 4), (3, 3), (-2, 5)):
            torch.testing.assert_close(f(lo, hi, X).cpu(), X + sum(range(lo, hi)))
        assert xf.trace_count(f) == 1
        dot = xf.jvp(lambda x: xf.fori_loop(0, torch.tensor(3), lambda i, y: y * x, x), (X,), (X,))[
            1
        ]
        torch.testing.assert_close(dot.cpu(), 4 * X**4)

    def test_wrong_bounds_raise(self) -> None:
        with pytest.raises(ValueError, match=r"has unroll=2, but a traced bound"):
            xf.fori_loop(0, torch.tensor(3), lambda i, v: v * 2, X, unroll=2)
        with pytest.raises(
            TypeError, match=r"(?s)the upper bound is 2\.5 \(a float\), not an integer"
        ):
            xf.fori_loop(0, 2.5, lambda i, y: y, X)
        with pytest.raises(TypeError, match=r"(?s)the lower bound is float64\[\], not an integer"):
            xf.fori_loop(X[0], 2, lambda i, y: y, X)


class TestMap:
    @pytest.mark.parametrize("batch_size", [None, 1, 2, 3, 7, 100])
    def test_batch_size_values_and_grad(self, batch_size: int | None) -> None:
        xs = torch.arange(21, dtype=torch.float64).reshape(7, 3) / 10

        def ours(w: torch.Tensor) -> torch.Tensor:
            ys = xf.map(lambda x: {"y": torch.tanh(x @ w)}, xs, batch_size=batch_size)
            assert ys["y"].shape == (7,)
            return ys["y"].pow(2).sum()

        want = torch.func.grad(lambda w: torch.tanh(xs @ w).pow(2).sum())(X)
        torch.testing.assert_close(xf.grad(ours)(X).cpu(), want)

    @pytest.mark.parametrize("batch_size", [None, 4])
    def test_empty_input(self, batch_size: int | None) -> None:
        got = xf.map(lambda x: x * 2, torch.zeros(0, 3), batch_size=batch_size)
        assert got.shape == (0, 3)

    def test_wrong_arguments_raise(self) -> None:
        with pytest.raises(ValueError, match=r"(?s)batch_size=0.*positive integer"):
            xf.map(torch.sin, X, batch_size=0)
        with pytest.raises(xf.errors.TreeMismatchError, match=r"(?s)leading axes differ in length"):
            xf.map(lambda p: p[0], (X, X[:2]), batch_size=2)


class TestAssociativeScan:
    @pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 7, 8, 9])
    @pytest.mark.parametrize("reverse", [False, True])
    def test_matmul_reverse(self, n: int, reverse: bool) -> None:
        generator = torch.Generator().manual_seed(n)
        ms = torch.randn(n, 2, 2, dtype=torch.float64, generator=generator)
        got = xf.associative_scan(torch.matmul, ms, reverse=reverse).cpu()
        want: list[torch.Tensor] = []
        for m in ms.flip(0) if reverse else ms:
            want.append(want[-1] @ m if want else m)
        if reverse:
            want.reverse()
        expected = torch.stack(want) if want else ms
        torch.testing.assert_close(got, expected)

    def test_other_axis(self) -> None:
        x = torch.arange(12, dtype=torch.float64).reshape(3, 4)
        got = xf.associative_scan(torch.add, x, axis=-1).cpu()
        torch.testing.assert_close(got, x.cumsum(1))
        torch.testing.assert_close(
            xf.associative_scan(torch.maximum, x, axis=1, reverse=True).cpu(),
            x.flip(1).cummax(1).values.flip(1),
        )

    def test_wrong_arguments_raise(self) -> None:
        with pytest.raises(
            xf.errors.TreeMismatchError, match=r"(?s)elems\[0\]: 3\n  elems\[1\]: 2"
        ):
            xf.associative_scan(lambda a, b: a, (X, X[:2]))
        with pytest.raises(
            xf.errors.TreeMismatchError, match=r"(?s)result: float64\[\] instead of"
        ):
            xf.associative_scan(lambda a, b: (a + b).sum(), X)
        with pytest.raises(
            xf.errors.TreeMismatchError, match=r"(?s)axis=2, but elems is float64\[3\]"
        ):
            xf.associative_scan(torch.add, X, axis=2)


class TestTensorsMadeOnTheHost:
    """What traced code makes on the CPU by name says ``cpu``."""

    HOST = torch.tensor([1.0, 2.0, 3.0])

    def made(self) -> torch.Tensor:
        return torch.arange(3.0, device="cpu") * 2

    def test_device_is_cpu_in_trace(self) -> None:
        kinds = []
        xf.jit(lambda x: kinds.append(self.made().device.type) or x)(X)
        assert kinds == ["cpu"]  # else the tests below test nothing

    @pytest.mark.parametrize("within", [False, True], ids=["closed over", "made within"])
    def test_scan(self, within: bool) -> None:
        def f(w: torch.Tensor) -> torch.Tensor:
            outer = self.made()
            step = lambda c, x: (c * x + (self.made() if within else outer), None)  # noqa: E731
            return xf.scan(step, self.HOST * 1, w)[0]

        got = xf.jit(f)(torch.tensor([2.0, 3.0])).cpu()
        torch.testing.assert_close(got, self.HOST * 6 + torch.tensor([0.0, 2.0, 4.0]) * 4)

    @pytest.mark.parametrize("within", [False, True], ids=["closed over", "made within"])
    @pytest.mark.parametrize("flag", [False, True])
    def test_cond(self, within: bool, flag: bool) -> None:
        def f(flag: torch.Tensor) -> torch.Tensor:
            outer = self.made()
            here = self.made if within else lambda: outer
            return xf.cond(flag, lambda x: x + here(), lambda x: x - here(), self.HOST * 1)

        got = xf.jit(f)(torch.tensor(flag)).cpu()
        change = torch.tensor([0.0, 2.0, 4.0])
        torch.testing.assert_close(got, self.HOST + (change if flag else -change))

    @pytest.mark.parametrize("within", [False, True], ids=["closed over", "made within"])
    def test_inner_jit(self, within: bool) -> None:
        def f(x: torch.Tensor) -> torch.Tensor:
            outer = self.made()
            inner = xf.jit(lambda y: y * (self.made() if within else outer))
            return inner(self.HOST * 1) + x

        got = xf.jit(f)(torch.tensor(1.0)).cpu()
        torch.testing.assert_close(got, torch.tensor([1.0, 5.0, 13.0]))


HELD = {
    "while": lambda x, c: xf.while_loop(
        lambda s: s[0] < 2, lambda s: (s[0] + 1, s[1] * c()[1]), (torch.tensor(0), x)
    )[1],
    "condition": lambda x, c: xf.while_loop(lambda s: s.sum() < c()[2], lambda s: s * 2, x),
    "scan": lambda x, c: xf.scan(lambda s, _: (s * c()[1], None), x, None, 2)[0],
    "cond": lambda x, c: xf.cond(x.sum() > 0, lambda x: x * c()[1], lambda x: x, x),
}


@pytest.mark.parametrize("name", HELD)
def test_loop_body_constant_array_under_transforms(name: str) -> None:
    """It is held by the body's program, and no input of it."""
    run = HELD[name]

    def of_list() -> torch.Tensor:
        return torch.tensor([0.0, 3.0, 20.0], dtype=torch.float64)

    def f(x: torch.Tensor) -> torch.Tensor:
        return run(x, of_list).sin()

    def plain(x: torch.Tensor) -> torch.Tensor:
        return (x * {"while": 9, "condition": 16, "scan": 9, "cond": 3}[name]).sin()

    x, n = torch.tensor([0.5, 1.0, 0.25], dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    both = torch.stack([x, x + 0.01])
    torch.testing.assert_close(xf.device_get(xf.vmap(f)(both)), plain(both))
    torch.testing.assert_close(
        xf.device_get(xf.jvp(f, (x,), (n,))), torch.func.jvp(plain, (x,), (n,))
    )
    pushed = xf.vmap(lambda x: xf.jvp(f, (x,), (n,))[1])(both)
    torch.testing.assert_close(pushed.cpu(), torch.func.jvp(plain, (both,), (n.expand(2, 3),))[1])


class Pair(NamedTuple):
    left: float
    right: float


class Couple(NamedTuple):
    left: float
    right: float


@dataclasses.dataclass
class Named:
    value: float
    name: str


xf.tree.register_dataclass(Named, meta_fields=["name"])


@pytest.mark.parametrize(
    ("init", "returned", "line"),
    [
        ([1.0, 2.0], (1.0, 2.0), r"carry: tuple instead of list"),
        ({"a": [1.0, [2.0]]}, {"a": [1.0, (2.0,)]}, r"carry\['a'\]\[1\]: tuple instead of list"),
        (Pair(1.0, 2.0), Couple(1.0, 2.0), r"carry: Couple instead of Pair"),
        ({"a": 1.0, "b": None}, {"a": 1.0, "b": ()}, r"carry\['b'\]: tuple instead of NoneType"),
        ((Named(1.0, "a"),), (Named(1.0, "b"),), r"carry\[0\]: .*\bb\b.* instead of .*\ba\b"),
    ],
)
def test_scan_error_names_the_nodes_that_differ(init: Any, returned: Any, line: str) -> None:
    with pytest.raises(xf.errors.TreeMismatchError, match=f"differ:\n  {line}"):
        xf.scan(lambda carry, _: (returned, None), init, length=2)
