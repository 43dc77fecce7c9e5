"""`custom_linear_solve`: the solution of linear equations, differentiated as such."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch

from xfunc import tree
from xfunc.backends.devices import to_device
from xfunc.core.avals import Aval, aval_of, batched
from xfunc.core.locations import function_name
from xfunc.core.wrappers import Bundle, Part
from xfunc.errors import fail
from xfunc.program.bind import bind, or_zeros
from xfunc.program.call import Call
from xfunc.program.primitive import Dims, Primitive, ReverseRule, Tensor
from xfunc.program.program import TracedProgram
from xfunc.stages.arguments import avals_of
from xfunc.stages.checks import Fun, as_tensors, check_floating, check_same, labels_in, split_aux
from xfunc.stages.joined_inputs import SharedInputs
from xfunc.stages.staging import Staged
from xfunc.stages.transformed import Transform
from xfunc.torchlib import functorch
from xfunc.torchlib.batching import at_dim
from xfunc.torchlib.eager import is_eager
from xfunc.trace import tracing
from xfunc.transforms.vjp import vjp
from xfunc.tree import PyTree

Solver = Callable[[Fun, PyTree], PyTree]


def custom_linear_solve(
    matvec: Fun,
    b: PyTree,
    solve: Solver,
    transpose_solve: Solver | None = None,
    symmetric: bool = False,
    has_aux: bool = False,
) -> PyTree:
    """Solve ``matvec(x) == b`` by ``solve(matvec, b)``, with the derivatives of the solution.

    The derivatives solve further equations, so `solve` may be any code, such as a loop of unknown
    length. They are taken with respect to `b` and the values that `matvec` closes over, but not
    those that the solvers close over.

    Args:
        matvec: a linear function, from trees like `b` to trees like `b`.
        b: a tree of floating tensors.
        solve: ``solve(matvec, b)`` returns `x`.
        transpose_solve: ``transpose_solve(vecmat, ct)``, likewise for the transpose of `matvec`.
            Reverse mode needs it.
        symmetric: whether `matvec` is its own transpose; then `solve` is used for both.
        has_aux: whether the solvers return ``(x, aux)``; `aux` has no derivative.

    Returns:
        `x`, a tree like `b`, with leaves of the same shapes and dtypes; or ``(x, aux)``.

    Raises:
        TypeError: a leaf of `b` is not floating, or reverse mode has no `transpose_solve`.
        TreeMismatchError: `matvec` or a solver returns something other than trees like `b`.

    Source: ``jax.lax.custom_linear_solve``.
    """
    back = solve if transpose_solve is None and symmetric else transpose_solve
    return LinearSolve(matvec, solve, back, bool(symmetric), bool(has_aux))(b)


class LinearSolve(Transform[..., PyTree]):
    """``b -> x``."""

    def __init__(
        self, matvec: Fun, solve: Solver, back: Solver | None, symmetric: bool, has_aux: bool
    ):
        given = (matvec, solve) if back is None else (matvec, solve, back)
        for f in given:
            if not callable(f):
                fail(
                    TypeError,
                    f"custom_linear_solve was given {f!r} as a function, which is not callable",
                    "write custom_linear_solve(matvec, b, solve, transpose_solve).",
                )
        super().__init__(Bundle(given), (symmetric, has_aux), "custom_linear_solve")
        self.__name__ = f"custom_linear_solve of {function_name(matvec)}"
        self._matvec, self._solvers, self._symmetric = matvec, given[1:], symmetric
        self._has_aux = has_aux

    def apply(self, b: PyTree) -> PyTree:
        b = as_tensors(b)
        leaves, b_tree = tree.flatten(b)
        check_floating(leaves, labels_in(b, "b"), self.__name__, real=True)
        if not is_eager():
            return self._solved(b, leaves, b_tree)
        # Values that `matvec` closes over are found by tracing it; the rest is as in other
        # primitives.
        there = [to_device(x) for x in leaves]
        out = self._solved(tree.unflatten(b_tree, there), there, b_tree)
        return tree.map(lambda x: x.to(leaves[0].device), out)

    def _solved(self, b: PyTree, leaves: list[Tensor], b_tree: tree.Structure) -> PyTree:
        matvec, n = self._matvec, len(leaves)

        def vecmat(ct: PyTree) -> PyTree:
            like = [torch.zeros_like(x) for x in tree.leaves(ct)]
            return vjp(matvec, tree.unflatten(b_tree, like))[1](ct)[0]

        operators = (matvec, matvec if self._symmetric else vecmat)
        parts = [Staged(matvec, value=Part(matvec, "matvec"))]
        for f, operator in zip(self._solvers, operators, strict=False):
            parts.append(self._part(f, operator, "transpose" if len(parts) == 2 else "solve"))
        structure, avals = tree.structure(((b,), {})), avals_of(leaves)
        inputs, uses = SharedInputs(leaves), list[tuple[int, ...]]()
        programs, out_trees = list[TracedProgram](), list[tree.Structure]()
        for part in parts:
            entry, held = part.find(structure, avals)
            has_aux = self._has_aux and part is not parts[0]
            self._check(entry.out_tree, entry.program.outputs, b, part.name, has_aux)
            if tracing.current() is None:  # under `disable_jit`: moved, with their derivatives
                held = [to_device(x) for x in held]
            uses.append((*range(n), *inputs.add(entry, leaves, held)))
            programs.append(entry.program)
            out_trees.append(entry.out_tree)
        primitive = Solve(
            self.__name__, tuple(programs), tuple(uses), n, self._symmetric, inputs.avals
        )
        return tree.unflatten(out_trees[1], bind(primitive, inputs.flat))

    def _part(self, solver: Solver, operator: Fun, role: str) -> Staged:
        def solved(b: PyTree) -> PyTree:
            out = as_tensors(solver(operator, b))
            split_aux(out, solver, self._has_aux, self.__name__)
            return out

        return Staged(solved, value=Part(Bundle((solver, self._matvec)), (role, self.options)))

    def _check(
        self, out_tree: tree.Structure, outputs: Sequence[Aval], b: PyTree, of: str, has_aux: bool
    ) -> None:
        own = out_tree.children()[0] if has_aux else out_tree
        check_same(
            tree.unflatten(own, outputs[: own.num_leaves]),
            tree.map(aval_of, b),
            what=f"what {of} returns and b",
            name=self.__name__,
            root="result",
            hint="return a tree like b, with its shapes and dtypes.",
        )


@dataclasses.dataclass(eq=False)
class Solve(Primitive):
    """The primitive; see `Primitive` for its methods.

    Attributes:
        programs: the linear function, its solver, and the solver of its transpose if there is one.
        uses: the flat input that feeds each input of each program; the first `n` inputs of the
            first program are fed otherwise.
        n: how many flat inputs are the right-hand side; the rest are closed over.
        symmetric: whether the linear function is its own transpose.
        avals: of the flat inputs.
    """

    name: str
    programs: tuple[TracedProgram, ...]
    uses: tuple[tuple[int, ...], ...]
    n: int
    symmetric: bool
    avals: tuple[Aval, ...]

    @property
    def outputs(self) -> tuple[Aval, ...]:
        return self.programs[1].outputs

    def emit(self, args: Sequence[Tensor]) -> list[Tensor]:
        return self.programs[1].lowering.apply([args[i] for i in self.uses[1]])

    @property
    def held(self) -> tuple[int, ...]:
        """The flat inputs that the linear function closes over."""
        return self.uses[0][self.n :]

    def through(self, wrt: tuple[int, ...]) -> TracedProgram:
        """``(x, held, cts of matvec(x)) -> gradients`` of the flat inputs `wrt`, all of `held`."""
        places = tuple(self.n + self.held.index(i) for i in wrt)
        return self.programs[0].pullback(places, tuple(range(self.n)))

    def transposed(self) -> Solve:
        """The equations of the transpose."""
        if len(self.programs) < 3:
            fail(
                TypeError,
                f"{self.name} has no transpose_solve, which reverse mode needs",
                "pass transpose_solve, or symmetric=True if matvec is its own transpose.",
            )
        matvec, solve, back = self.programs
        programs = matvec if self.symmetric else _transpose(matvec, self.n), back, solve
        uses = self.uses[0], self.uses[2], self.uses[1]
        return dataclasses.replace(self, programs=programs, uses=uses)

    def reverse_rule(self, wrt: tuple[bool, ...]) -> ReverseRule | None:
        if len(self.programs) < 3:
            return None
        own = tuple(i for i, w in enumerate(wrt) if w and i < self.n)
        held = tuple(i for i in dict.fromkeys(self.held) if wrt[i])
        return _SolveReverseRule(self, own, held, self.through(held) if held else None)

    def vjp(
        self, args: Sequence[Tensor], cts: Sequence[Tensor | None], wrt: tuple[int, ...]
    ) -> list[Tensor]:
        n = self.n
        given = list(map(or_zeros, cts, self.outputs))
        ys = bind(self.transposed(), [*given[:n], *args[n:]])[:n]
        found = dict(enumerate(ys))
        held = tuple(i for i in dict.fromkeys(self.held) if i in wrt)
        if held:
            xs = bind(self, args)[:n]
            inputs = [*xs, *(args[i] for i in self.held), *(-y for y in ys)]
            found |= zip(held, bind(Call(self.through(held)), inputs), strict=True)
        return [found[i] if i in found else torch.zeros_like(args[i]) for i in wrt]

    def jvp(self, args: Sequence[Tensor], tangents: Sequence[Tensor | None]) -> list[Tensor | None]:
        n = self.n
        right = list(map(or_zeros, tangents[:n], self.avals))
        moving = [k for k, i in enumerate(self.held) if tangents[i] is not None]
        if moving:
            pushed = self.programs[0].pushforward(tuple(n + k for k in moving))
            dots = [t for k in moving if (t := tangents[self.held[k]]) is not None]
            xs = bind(self, args)[:n]
            along = bind(Call(pushed), [*xs, *(args[i] for i in self.held), *dots])[n:]
            right = [r - a for r, a in zip(right, along, strict=True)]
        rest = (None,) * (len(self.outputs) - n)
        return [*bind(self, [*right, *args[n:]])[:n], *rest]

    def batch(
        self, dims: Dims, n: int, args: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[int | None]]:
        wanted = self.placed(dims)
        moved = [at_dim(a, d, w, n) for a, d, w in zip(args, dims, wanted, strict=True)]
        return bind(self.batched(wanted, n), moved), [0] * len(self.outputs)

    def placed(self, dims: Dims) -> Dims:
        """The batch dimensions of the arguments of `batched`: there is one for each `x`."""
        return (*(0 for _ in range(self.n)), *dims[self.n :])

    def batched(self, dims: Dims, n: int) -> Solve:
        """The equations of the vmap."""
        programs = tuple(
            p.batched(tuple(dims[i] for i in u), n)
            for p, u in zip(self.programs, self.uses, strict=True)
        )
        return dataclasses.replace(self, programs=programs, avals=batched(self.avals, dims, n))


def _transpose(matvec: TracedProgram, n: int) -> TracedProgram:
    """The transpose of a program that is linear in its first `n` inputs."""

    def fn(*flat: Tensor) -> list[Tensor]:
        held = flat[n:]
        at = [torch.zeros_like(y) for y in flat[:n]]
        pull = functorch.vjp(lambda *xs: (tuple(matvec.fn(*xs, *held)), ()), *at)[1]
        return list(pull(tuple(flat[:n])))

    return matvec.derive(("transpose", n), f"transpose of {matvec.name}", fn, matvec.avals)


@dataclasses.dataclass(eq=False)
class _SolveReverseRule:
    """First-order reverse mode, which keeps `x`; see `ReverseRule` for its methods."""

    primitive: Solve
    own: tuple[int, ...]
    held: tuple[int, ...]
    through: TracedProgram | None

    def __post_init__(self) -> None:
        self.wrt = (*self.own, *self.held)
        self.n_outputs = len(self.primitive.outputs)
        self.cts = tuple(range(self.primitive.n))

    def forward(self, args: Sequence[Tensor]) -> list[Tensor]:
        outs = self.primitive.emit(args)
        return [*outs, *(x.clone() for x in outs[: self.primitive.n])]

    def backward(
        self, args: Sequence[Tensor], residuals: Sequence[Tensor], cts: Sequence[Tensor | None]
    ) -> list[Tensor]:
        p, n = self.primitive, self.primitive.n
        given = list(map(or_zeros, cts[:n], p.outputs))
        ys = p.transposed().emit([*given, *args[n:]])[:n]
        result = [ys[i] for i in self.own]
        if self.through is None:
            return result
        inputs = [*residuals, *(args[i] for i in p.held), *(-y for y in ys)]
        return [*result, *self.through.lowering.apply(inputs)]

    def batched(self, dims: Dims, n: int) -> tuple[ReverseRule, Dims, Dims, Dims]:
        p = self.primitive
        wanted = p.placed(dims)
        through = self.through
        if through is not None:  # per-example gradients, even for shared values
            each = (0,) * p.n
            through = through.batched((*each, *(dims[i] for i in p.held), *each), n)
        inner = _SolveReverseRule(p.batched(wanted, n), self.own, self.held, through)
        return inner, wanted, (0,) * self.n_outputs, (0,) * len(self.wrt)
