"""A program loaded from a file, and its header's descriptions of arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from xfunc import tree
from xfunc.backends.active import runtime
from xfunc.backends.devices import to_device
from xfunc.backends.donated import run_donating
from xfunc.backends.lock import lock
from xfunc.backends.placement import as_argument, hand_on_mesh
from xfunc.backends.target_passes import UNUSED
from xfunc.core import ambient
from xfunc.core.avals import NUMBERS, Aval, ShapeDtypeStruct, array_of, dtype_of, hlo_shape, short
from xfunc.core.matcher import matcher
from xfunc.core.structures import decode
from xfunc.core.types import Shaped, Sharding
from xfunc.errors import TreeMismatchError, UnsupportedOpError, fail, hint_for, kind_of, short_repr
from xfunc.graph import build
from xfunc.graph.graph import Graph
from xfunc.hlo import InvalidHloError, Module, Shape, verify
from xfunc.torchlib import functorch, values
from xfunc.torchlib.arrays import from_numpy
from xfunc.torchlib.storageless import check_surroundings
from xfunc.trace import tracing
from xfunc.trace.lowering import HloProgram
from xfunc.tree import Leaf, PyTree


def _check_program(module: Module, avals: Sequence[Aval], outputs: Sequence[Aval]) -> None:
    verify(module)
    entry = module.entry
    parameters = [p.shape for p in entry.parameters]
    if parameters != ([hlo_shape(a) for a in avals] or [hlo_shape(UNUSED)]):
        raise InvalidHloError("its parameters are not those of the header")
    if entry.root.shape != Shape.of_tuple(map(hlo_shape, outputs)):
        raise InvalidHloError("its results are not those of the header")


def loaded(name: str, hlo: bytes, avals: Sequence[Aval], outputs: Sequence[Aval]) -> HloProgram:
    """The program of a file, checked against its header."""
    module = Module.from_bytes(hlo)
    _check_program(module, avals, outputs)
    if not avals:  # There, it takes `UNUSED`.
        unused = build.constant(False, torch.bool)
        types = [array_of(a) for a in outputs]
        results = build.several("call", types, (unused,), None, (module,))
        return HloProgram.of(name, Graph(name, (), results), avals, outputs)
    return HloProgram.of(name, module, avals, outputs)


ReadShardings = Callable[[Any], Sequence[Sharding | None]]
_readers: list[ReadShardings] = []


def read_shardings_with(read: ReadShardings) -> None:
    """Register the reader of the shardings that `xfunc.export.files` writes."""
    _readers[:] = [read]


class _LastHit:
    """The accepted leaves of an earlier call, so that equal ones are not checked again.

    See `xfunc.stages.fast_path`.
    """

    def __init__(self, leaves: Sequence[torch.Tensor]):
        self._modes, self._avals_of = ambient.plain_modes(), runtime().avals
        self._avals = self._avals_of(leaves)

    def are_like(self, leaves: Sequence[Any]) -> bool:
        """Whether others are the same kinds of data on the devices, which nothing watches."""
        return (
            self._modes is not None
            and ambient.are_plain(self._modes)
            and self._avals is not None
            and self._avals_of(leaves) == self._avals
            and not functorch.is_transformed()
            and not (functorch.any_requires_grad(*leaves) and torch.is_grad_enabled())
        )


class Exported:
    """A loaded program, made by `deserialize`.

    Attributes:
        name: of the function that it was made from.
        stablehlo: the program as a portable StableHLO artifact. Its function ``main`` takes the
            leaves of the arguments in order (a boolean, if there are none) and returns those of
            the result. For a range of shapes, it is the program of the largest bucket.
        buckets: for a range of shapes, the sizes of each bucket and its StableHLO; its ``main``
            takes the leaves padded to the bucket's shape, then the actual size of each `Dim`, an
            int64; its results must be cut to their shapes. () for a single shape.
        donated: positions of the argument leaves with memory that a call may reuse.
    """

    def __init__(self, header: Mapping[str, object], hlo: bytes, stablehlo: bytes):
        self._describe(header, read_avals(header["input_avals"]))
        self.stablehlo = stablehlo
        self.buckets: tuple[tuple[dict[str, int], bytes], ...] = ()
        outputs = read_avals(header["output_avals"])
        self._lowering = loaded(self.name, hlo, tree.leaves(self._expected), outputs)

    def _describe(self, header: Mapping[str, Any], avals: Sequence[Aval]) -> None:
        self.name: str = header["name"]
        # Files written before these were kept lack them.
        self.donated = frozenset(int(i) for i in header.get("donated", ()))
        if not self.donated <= set(range(len(avals))):
            raise ValueError(f"it donates arguments {sorted(self.donated)} of {len(avals)}")
        shardings = header.get("shardings")
        found = [None] * len(avals) if shardings is None else _readers[0](shardings)
        for a, s in zip(avals, found, strict=True):
            if s is not None and all(isinstance(n, int) for n in a.shape):
                s.check(a.shape, f"an argument of {self.name}")
        avals = [a.update(sharding=s) for a, s in zip(avals, found, strict=True)]
        self._outputs = decode(header["outputs"])
        self._static = [int(i) for i in header["static"]]
        self._expected = tree.unflatten(decode(header["inputs"]), avals)
        self._leaves = avals
        args, kwargs = self._expected
        # In the form of a call: static arguments are part of the program.
        self._args = tuple(a for i, a in enumerate(args) if i not in self._static)
        self._kwargs = dict(sorted(kwargs.items()))
        # Structures of earlier calls; their named tuples are of the caller's classes.
        self._leaves_of: Callable[[PyTree], list[Leaf] | None] | None = None
        self._latest: _LastHit | None = None
        self._labels = tuple(self._by_path(self._args, self._kwargs))
        if len(self._labels) != len(avals):
            raise ValueError(f"its static arguments {self._static} are arrays")

    @property
    def in_info(self) -> PyTree:
        """``(args, kwargs)`` as trees of `ShapeDtypeStruct`, with the shardings it expects."""
        return self._expected

    @property
    def out_info(self) -> PyTree:
        """The result as a tree of `ShapeDtypeStruct`."""
        return tree.unflatten(self._outputs, self._lowering.outputs)

    def __call__(self, *args: object, **kwargs: object) -> PyTree:
        """Run the program.

        Static arguments are left out: they are part of the program. Tensors on the CPU, and
        replicated ones, are sharded as the program expects. Arguments that the exported function
        donates can't be used afterwards.

        Raises:
            TreeMismatchError: the arguments have another structure, shape or dtype.
            TypeError: an argument is no array.
            OverflowError: an integer does not fit into an int64.
            ShardingError: an argument is sharded otherwise, or there are more or fewer devices than
                in the program's mesh.
            UnsupportedOpError: the call is being differentiated or batched, or an argument is no
                dense tensor with data.
        """
        leaves = self._leaves_of and self._leaves_of((args, kwargs))
        if leaves is None or self._latest is None or not self._latest.are_like(leaves):
            leaves = self._checked(args, kwargs)
        with lock.for_run():
            return tree.unflatten(self._outputs, self._run(leaves))

    def _checked(self, args: PyTree, kwargs: PyTree) -> list[torch.Tensor]:
        """The leaves of the arguments, as tensors."""
        check_surroundings(self.name)
        args, kwargs = tree.map(from_numpy, (args, kwargs))
        leaves = self._leaves_of and self._leaves_of((args, kwargs))
        if leaves is None or not all(map(self._is_right, leaves, self._leaves, self._labels)):
            self._check(args, kwargs)
            leaves, structure = tree.flatten((args, kwargs))
            self._leaves_of = matcher(structure)
        tensors = [self._tensor(x) for x in leaves]
        if tracing.current() is None:
            self._latest = _LastHit(tensors)
        return tensors

    def _is_right(self, x: object, want: Aval, label: str) -> bool:
        """Whether a leaf certainly fits the program."""
        if not isinstance(x, torch.Tensor):
            return False
        values.check_array(x, None, f"{label} of {self.name}")
        return self._is_like(x, want)

    def _run(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        return self._apply(self._lowering, tensors)

    def _apply(
        self,
        lowering: HloProgram,
        given: Sequence[torch.Tensor],
        sizes: Sequence[torch.Tensor] = (),
    ) -> list[torch.Tensor]:
        """Apply a program to the leaves of the arguments and the sizes of Dims."""
        if tracing.current() is not None or not lowering.outputs:
            return lowering.apply([*given, *sizes])
        where = runtime()
        flat = list(given)
        if where.device_count() > 1 or where.avals(flat) is None:
            flat = list(map(self._placed, range(len(flat)), flat))
        flat += map(to_device, sizes)
        run = lowering.executable(self.donated, where.placements(flat))
        outputs = run_donating(run, flat, self.donated, self.name)
        if where.device_count() > 1:
            hand_on_mesh(flat, outputs)
        return outputs

    def _placed(self, i: int, x: torch.Tensor) -> torch.Tensor:
        """Leaf i of the arguments where the program needs it."""
        x = x.detach() if x.requires_grad else x
        sharding = self._leaves[i].sharding
        if sharding is None or runtime().device_count() == 1:
            return to_device(x)
        return as_argument(x, sharding, self.name, self._labels[i])

    def _tensor(self, x: object) -> torch.Tensor:
        trace = tracing.current()
        if not isinstance(x, torch.Tensor):
            x = torch.tensor(x, dtype=dtype_of(type(x)), device="cpu" if trace is None else None)
        watched = (torch.is_grad_enabled() and values.is_tracked(x)) or functorch.any_dual(x)
        if watched or (functorch.levels() and functorch.is_wrapped(x)):
            fail(
                UnsupportedOpError,
                f"{self.name} was exported, and can no longer be differentiated or batched",
                "export xf.grad or xf.vmap of the function instead; pass x.detach() for an "
                "argument that needs no gradient.",
            )
        return x if trace is None else trace.lift(x)

    def _is_like(self, x: Shaped, want: Aval) -> bool:
        return (tuple(x.shape), x.dtype) == (tuple(want.shape), want.dtype)

    def _check(self, args: PyTree, kwargs: PyTree) -> None:
        got = self._by_path(args, kwargs)
        for label, x in got.items():
            if isinstance(x, torch.Tensor):
                values.check_array(x, None, f"{label} of {self.name}")
        want = self._by_path(self._args, self._kwargs)
        lines = [f"  {p}: missing" for p in want if p not in got]
        lines += [f"  {p}: unexpected" for p in got if p not in want]
        lines += [
            f"  {p}: {short(got[p])} instead of {short(w)}"
            for p, w in want.items()
            if p in got and not self._is_like(got[p], w)
        ]
        hint = "pass arguments of the exported shapes, or export for these."
        if not lines:
            given = args, kwargs, self._args, self._kwargs
            lines = [f"  {line}" for line in _other_nodes(*given)]
            hint = "pass trees of the exported classes, or export for these."
        if lines:
            problem = "\n".join([f"{self.name} was exported for other arguments:", *lines])
            fail(TreeMismatchError, problem, self._without_static(hint))

    def _by_path(self, args: PyTree, kwargs: PyTree) -> dict[str, Leaf]:
        result = {}
        for root, t in (*((f"argument {i}", a) for i, a in enumerate(args)), *kwargs.items()):
            for path, x in tree.leaves_with_path(t):
                result[f"{root}{path}"] = self._as_array(x, f"{root}{path}")
        return result

    def _as_array(self, x: object, label: str) -> object:
        if isinstance(x, (torch.Tensor, ShapeDtypeStruct)):
            return x
        if type(x) not in NUMBERS:
            fail(
                TypeError,
                f"{self.name}, which was exported, was given {short_repr(x)} "
                f"({kind_of(x)}) as {label}",
                self._without_static(hint_for(x)),
            )
        if type(x) is int and not -(2**63) <= x < 2**63:
            fail(
                OverflowError,
                f"{label} of {self.name} is {x}, too large for an int64",
                "pass a smaller number, or export for a float.",
            )
        return Aval((), dtype_of(type(x)))

    def _without_static(self, hint: str) -> str:
        """A hint, and which arguments of the function are none of the program's."""
        if not self._static:
            return hint
        which = f"{', '.join(map(str, self._static))} of {self.name}"
        return f"{hint} Leave out the static arguments ({which}): they are part of the program."


def _other_nodes(
    args: PyTree, kwargs: PyTree, want_args: PyTree, want_kwargs: PyTree
) -> Iterator[str]:
    """The differences of trees with equal paths of leaves: classes of nodes, and empty nodes.

    Classes of named tuples are compared by name and fields: a file has no others.
    """
    if len(args) != len(want_args):
        yield f"{len(args)} positional arguments instead of {len(want_args)}"
    if kwargs.keys() != want_kwargs.keys():
        yield f"keyword arguments {sorted(kwargs)} instead of {sorted(want_kwargs)}"
    pairs = [(f"argument {i}", a, b) for i, (a, b) in enumerate(zip(args, want_args, strict=False))]
    pairs += [(k, kwargs[k], want_kwargs[k]) for k in kwargs if k in want_kwargs]
    for path, got, want in pairs:
        yield from _other(path, tree.structure(got), tree.structure(want))


def _other(path: str, got: tree.Structure, want: tree.Structure) -> Iterator[str]:
    if _kind(got) != _kind(want):
        yield f"{path}: {_kind(got)} instead of {_kind(want)}"
    elif (names := _names(got)) != _names(want):
        has, needs = ("".join(n) or "nothing" for n in (names, _names(want)))
        yield f"{path}: {_kind(got)} of {has} instead of {needs}"
    else:
        for name, *children in zip(names, got.children(), want.children(), strict=True):
            yield from _other(f"{path}{name}", *children)


def _kind(node: tree.Structure) -> str:
    if node.type is None:
        return "an array"
    return "None" if node.type is type(None) else f"a {node.type.__name__}"


def _names(node: tree.Structure) -> list[str]:
    """The children of a node, as paths name them."""
    fields: Sequence[str] | None = getattr(node.type, "_fields", None)
    return [f"[{k!r}]" for k in node.entries()] if fields is None else [f".{f}" for f in fields]


def write_avals(avals: Iterable[Aval]) -> list[list[object]]:
    """Shapes and dtypes, for a header."""
    return [[list(a.shape), str(a.dtype).removeprefix("torch.")] for a in avals]


def read_avals(written: Any) -> tuple[Aval, ...]:
    """The avals that `write_avals` wrote."""
    return tuple(Aval(tuple(shape), getattr(torch, dtype)) for shape, dtype in written)
