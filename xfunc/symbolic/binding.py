"""`dynamic_shapes`: which dimensions of arguments are symbols, and their values in a call."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

import optree

from xfunc import tree
from xfunc.core.avals import SymbolicSize
from xfunc.errors import ShapeError, TreeMismatchError, fail, short_repr
from xfunc.symbolic.dim import Expression, merged, size_of
from xfunc.symbolic.polynomial import Env, Polynomial, Size, value
from xfunc.symbolic.shape_domain import Range, ShapeDomain
from xfunc.tree import PyTree

Written = tuple[int | Expression | None, ...]  # of one array


_MOST = 4096  # combinations of sizes that are remembered


Dims = tuple[Size | None, ...] | None  # of one argument; None: its own


@dataclasses.dataclass(frozen=True)
class Declared:
    """The dimensions of flat arguments.

    Attributes:
        function: its name.
        labels: of the arguments.
        dims: of each argument.
        box: of all symbols.
    """

    function: str
    labels: tuple[str, ...]
    dims: tuple[Dims, ...]
    box: ShapeDomain
    _varying: tuple[int, ...] = dataclasses.field(init=False, compare=False, repr=False)
    _known: dict[tuple[tuple[int, ...], ...], dict[str, int]] = dataclasses.field(
        init=False, compare=False, repr=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        varying = tuple(k for k, dims in enumerate(self.dims) if dims is not None)
        object.__setattr__(self, "_varying", varying)

    @property
    def varying(self) -> tuple[int, ...]:
        """Which arguments have declared dimensions."""
        return self._varying

    def where(self, ends: Mapping[str, tuple[int, int]]) -> Declared:
        """The same for the only size of each symbol that has one between these ends."""
        fixed = {n: (low, high) for n, (low, high) in ends.items() if low == high}
        return Declared(self.function, self.labels, self.dims, self.box.within(**fixed))

    def bind(self, shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
        """The value of each symbol in a call with arguments of these shapes.

        Raises:
            ShapeError: a symbol has no value, or the shapes contradict the declared ones.
        """
        key = tuple([shapes[k] for k in self._varying])
        env = self._known.get(key)
        if env is None:
            if len(self._known) >= _MOST:
                self._known.clear()
            env = self._known[key] = self._bound(shapes)
        return dict(env)

    def _bound(self, shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
        env: dict[str, int] = {}
        source: dict[str, str] = {}
        found = list(self._sizes(shapes))
        for label, size, n in sorted(found, key=lambda x: _difficulty(x[1])):
            where = f"{label} of {self.function}"
            left = [s for s in size.symbols if s not in env]
            if len(left) == 1 and _difficulty(size) < 2:
                self._solve(env, source, left[0], size, n, where)
            elif not left and size.at(env) != n:
                said = " and ".join(dict.fromkeys(source[s] for s in size.symbols))
                values = ", ".join(f"{s}={env[s]}" for s in size.symbols)
                fail(
                    ShapeError,
                    f"{where} is {n} where {size} is declared, but {said} makes it {values}",
                    f"pass arguments that agree about {', '.join(size.symbols)}.",
                )
        for name in self.box.ranges:
            if name not in env:
                fail(
                    ShapeError,
                    f"no argument of {self.function} determines {name}",
                    f"make a dimension of some argument {name} itself, or a multiple of it.",
                )
        return env

    def _sizes(self, shapes: Sequence[tuple[int, ...]]) -> Iterator[tuple[str, Polynomial, int]]:
        for label, dims, shape in zip(self.labels, self.dims, shapes, strict=True):
            if dims is None:
                continue
            if len(dims) != len(shape):
                fail(
                    ShapeError,
                    f"{label} of {self.function} has {len(shape)} dimensions, {[*shape]}; "
                    f"dynamic_shapes declares {len(dims)}",
                    "declare each dimension: a Dim, or None where it does not vary.",
                )
            for d, (size, n) in enumerate(zip(dims, shape, strict=True)):
                if isinstance(size, Polynomial):
                    yield f"dimension {d} of {label}", size, n
                elif size is not None and size != n:
                    fail(
                        ShapeError,
                        f"dimension {d} of {label} of {self.function} is {n} where {size} is "
                        "declared",
                        "pass an array of that size, or declare a Dim.",
                    )

    def _solve(
        self, env: dict[str, int], source: dict[str, str], name: str, size: Polynomial, n: int,
        where: str,
    ) -> None:  # fmt: skip
        parts = size.coefficients(name)
        rest = Polynomial(()) if 0 not in parts else parts[0]
        factor = parts[1].at(env)
        found = Fraction(n - rest.at(env)) / factor if factor else Fraction(0)
        sizes = self.box.ranges[name]
        if size == Polynomial.symbol(name):
            problem = f"{where} is {n}, which is declared as {name}"
        else:
            problem = f"{where} is {n}, which is declared as {size}"
        if found.denominator != 1:
            problem = f"{problem}, but {name} would not be an integer"
            fail(ShapeError, problem, "pass an array of such a size.")
        s = int(found)
        if n == 0:
            fail(ShapeError, f"{problem}: it is empty", "skip calls without data.")
        if s % sizes.step and (sizes.max is None or s < sizes.max):
            problem = f"{problem}; {name} is a multiple of {sizes.step}"
            fail(ShapeError, problem, f"pad it to {-(-s // sizes.step) * sizes.step}.")
        if s not in sizes:
            end = f"at least {sizes.min}" if s < sizes.min else f"at most {sizes.max}"
            hint = f"declare Dim({name!r}, ...) with other bounds, or pass another size."
            fail(ShapeError, f"{problem}; {name} is {end}", hint)
        env[name] = s
        source[name] = where


def _difficulty(size: Polynomial) -> int:
    """0: a symbol itself; 1: linear in each; 2: anything else."""
    if len(size.terms) == 1 and size == Polynomial.symbol(size.symbols[0]):
        return 0
    return 1 if all(size.degree(s) == 1 for s in size.symbols) else 2


def declare(
    function: str,
    spec: PyTree,
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    names: Sequence[str],
    labels: Sequence[str],
) -> Declared:
    """The dimensions that a prefix tree declares for the leaves of arguments.

    Args:
        function: its name.
        spec: a tuple for positional arguments, or a dict of arguments by name.
        args: positional arguments.
        kwargs: keyword arguments.
        names: of the function's parameters.
        labels: of the leaves.
    """
    found: list[Written | None] = []
    if isinstance(spec, dict):
        unknown = spec.keys() - {*names[: len(args)], *kwargs}
        if unknown:
            fail(
                TreeMismatchError,
                f"dynamic_shapes of {function} names {short_repr(min(unknown))}, "
                "which was not given",
                f"name arguments: {', '.join([*names[: len(args)], *kwargs])}.",
            )
        parts = [spec.get(n) for n in [*names, *[""] * len(args)][: len(args)]]
    else:
        if len(spec) > len(args):
            fail(
                TreeMismatchError,
                f"dynamic_shapes of {function} has more entries ({len(spec)}) than there are "
                f"positional arguments ({len(args)})",
                "give one for each positional argument; use a dict for arguments by name.",
            )
        parts = [*spec, *[None] * (len(args) - len(spec))]
    for k, (part, x) in enumerate(zip(parts, args, strict=True)):
        _walk(part, x, found, f"{function}: dynamic_shapes[{k}]")
    for n in sorted(kwargs):
        part = spec.get(n) if isinstance(spec, dict) else None
        _walk(part, kwargs[n], found, f"{function}: dynamic_shapes[{n!r}]")
    flat = [d for dims in found if dims is not None for d in dims]
    ranges: dict[str, Range] = merged(flat)
    dims = tuple(
        None if ds is None else tuple(None if d is None else size_of(d) for d in ds) for ds in found
    )
    return Declared(function, tuple(labels), dims, ShapeDomain(ranges))


def _walk(spec: PyTree, x: PyTree, found: list[Written | None], where: str) -> None:
    """Add the declared dimensions of each leaf."""
    leaves = tree.leaves(x)
    is_one = len(leaves) == 1 and leaves[0] is x
    if spec is None:
        found += [None] * len(leaves)
    elif _is_dims(spec):
        found += [_as_dims(spec, leaf, where, is_one) for leaf in leaves]
    elif is_one:
        found.append(_as_dims(spec, x, where))
    else:
        children, _, entries, _ = optree.tree_flatten_one_level(x, namespace=tree.NAMESPACE)
        parts = _parts(spec, list(entries), where)
        for e, child in zip(entries, children, strict=True):
            _walk(parts[e], child, found, f"{where}[{e!r}]")


def _is_dims(spec: PyTree) -> bool:
    """Whether this describes dimensions rather than parts of a tree."""
    entries = spec.values() if isinstance(spec, dict) else spec
    if not isinstance(spec, (tuple, list, dict)):
        return False
    plain = all(d is None or isinstance(d, (int, SymbolicSize)) for d in entries)
    return plain and any(isinstance(d, SymbolicSize) for d in entries)


def _as_dims(spec: PyTree, x: object, where: str, is_one: bool = True) -> Written:
    """The declared dimensions of a leaf; unless `is_one`, others have the same declaration."""
    rank = len(getattr(x, "shape", ()))
    if isinstance(spec, dict) and all(isinstance(d, int) for d in spec):
        outside = [d for d in spec if d < 0 or (is_one and d >= rank)]
        if outside:
            fail(
                TreeMismatchError,
                f"{where} declares dimension {outside[0]} of an array that has {rank}",
                f"count dimensions from 0{f' to {rank - 1}' if is_one and rank else ''}.",
            )
        return tuple(spec.get(d) for d in range(rank))
    good = isinstance(spec, (tuple, list)) and all(
        d is None or (isinstance(d, int) and not isinstance(d, bool)) or isinstance(d, Expression)
        for d in spec
    )
    if not good:
        fail(
            TreeMismatchError,
            f"{where} is {short_repr(spec)}, for an array",
            "give None, or a tuple with a Dim, a number or None for each dimension.",
        )
    return tuple(spec)


def _parts(spec: object, entries: Sequence[object], where: str) -> dict[object, object]:
    """The parts of a prefix by the entries of the tree; None for entries left out."""
    if isinstance(spec, dict):
        given = dict(spec)
    elif isinstance(spec, (tuple, list)) and len(spec) == len(entries):
        given = dict(zip(entries, spec, strict=True))
    else:
        fail(
            TreeMismatchError,
            f"{where} is {short_repr(spec)}, for a tree with entries {entries}",
            "make dynamic_shapes a tree prefix of the arguments.",
        )
    unknown = [k for k in given if k not in entries]
    if unknown:
        fail(
            TreeMismatchError,
            f"{where} has {short_repr(unknown[0])}, which is not one of {entries}",
            "make dynamic_shapes a tree prefix of the arguments.",
        )
    return {e: given.get(e) for e in entries}


def sizes_at(dims: Dims, shape: tuple[int, ...], env: Env) -> tuple[int, ...]:
    """The shape of an argument for other values of the symbols."""
    if dims is None:
        return shape
    return tuple(
        value(d, env) if isinstance(d, Polynomial) else n for d, n in zip(dims, shape, strict=True)
    )
