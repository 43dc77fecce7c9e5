"""`pure_callback` and `io_callback`: results of Python in the middle of a program.

To only observe values, use `xfunc.debug.callback`, which works on every device and backend.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import NoReturn

import torch

from xfunc import tree
from xfunc.backends import host_calls
from xfunc.backends.active import runtime
from xfunc.cache import identity
from xfunc.core.avals import Aval, ShapeDtypeStruct, array_of, short
from xfunc.core.locations import function_name
from xfunc.errors import TreeMismatchError, UnsupportedOpError, fail, kind_of, short_repr
from xfunc.ops.emit import instruction
from xfunc.program.bind import bind
from xfunc.program.primitive import Dims, Primitive, ReverseRule, Tensor
from xfunc.stages.arguments import as_outputs
from xfunc.stages.checks import Fun, arrays, as_tensors, labels_in
from xfunc.stages.transformed import Transform
from xfunc.torchlib import functorch
from xfunc.torchlib.arrays import from_numpy
from xfunc.torchlib.batching import at_dim
from xfunc.torchlib.eager import is_eager
from xfunc.trace import effects, tracing
from xfunc.trace.effects import Callback
from xfunc.transforms.scan.scan import scan
from xfunc.tree import PyTree

_METHODS = (None, "sequential", "expand_dims", "broadcast_all")
_numbers = itertools.count()


def pure_callback(
    callback: Fun,
    result_shape_dtypes: object,
    *args: object,
    vmap_method: str | None = None,
    **kwargs: object,
) -> PyTree:
    """``callback(*args, **kwargs)``, called on the host while the program runs.

    The callback gets CPU tensors, and may be called any number of times, or never: it must be pure.
    It has no derivative: give it one with `custom_jvp` or `custom_vjp`.

    Args:
        callback: returns a tree of arrays or numbers, as described by `result_shape_dtypes`.
        result_shape_dtypes: a tree of `ShapeDtypeStruct`, or of tensors like the results.
        args: trees of tensors and numbers.
        vmap_method: how `vmap` calls it: once for each example (``"sequential"``), or once with
            arrays whose first axis is the batch; for unmapped arguments that axis has size 1
            (``"expand_dims"``) or the full size (``"broadcast_all"``). None: it cannot be batched.
        kwargs: like `args`, by name.

    Returns:
        A tree like `result_shape_dtypes`, with tensors of those shapes and dtypes.

    Raises:
        UnsupportedOpError: it is differentiated, or batched without a method; or programs of the
            device cannot call the host.

    Source: ``jax.pure_callback``.
    """
    if vmap_method not in _METHODS:
        fail(
            ValueError,
            f"pure_callback was given vmap_method={vmap_method!r}",
            f"choose from {', '.join(map(repr, _METHODS))}.",
        )
    call = HostFunction(callback, result_shape_dtypes, vmap_method, "pure_callback")
    return call(*args, **kwargs)


def io_callback(
    callback: Fun,
    result_shape_dtypes: object,
    *args: object,
    ordered: bool = False,
    **kwargs: object,
) -> PyTree:
    """``callback(*args, **kwargs)``, which has effects, called once while the program runs.

    On several devices it gets whole arrays, and the first device calls it, in its own process; the
    others get the results. In a `shard_map`, each device calls it once.
    Several callbacks are called in the order of their data dependencies, otherwise in any order. It
    cannot be differentiated or batched, and is allowed wherever `xfunc.debug.callback` is.

    Args:
        callback: see `pure_callback`.
        result_shape_dtypes: see `pure_callback`; it has at least one array.
        args: trees of tensors and numbers.
        ordered: must be False.
        kwargs: like `args`, by name.

    Returns:
        A tree like `result_shape_dtypes`, with tensors of those shapes and dtypes.

    Raises:
        UnsupportedOpError: it is ordered, differentiated or batched, or is where
            `xfunc.debug.callback` is not allowed; or programs of the device cannot call the host.

    Source: ``jax.experimental.io_callback``.
    """
    if ordered:
        fail(
            UnsupportedOpError,
            "io_callback was given ordered=True, but compiled programs do not order effects",
            "pass a result of the first call to the second; or, if no result is needed, use "
            "xf.debug.callback, whose calls are in order.",
        )
    return HostFunction(callback, result_shape_dtypes, None, "io_callback")(*args, **kwargs)


class HostFunction(Transform[..., PyTree]):
    """``arguments -> results`` of a callback."""

    def __init__(self, callback: Fun, results: object, method: str | None, kind: str):
        leaves, self._out_tree = tree.flatten(results)
        self._outputs = tuple(_aval(x, kind) for x in leaves)
        self._method, self._kind = method, kind
        super().__init__(callback, (self._outputs, self._out_tree, method, kind), kind)

    def apply(self, *args: object, **kwargs: object) -> PyTree:
        args, kwargs = as_tensors((args, kwargs))
        leaves, structure = tree.flatten((args, kwargs))
        labels = [*labels_in(args, "arguments"), *labels_in(kwargs, "keyword arguments")]
        leaves = arrays(leaves, self.__name__, labels)
        call = _Call(self.fun, structure, self._outputs, self._method, self._kind)
        if is_eager():
            outs = bind(call, leaves) if self._outputs else call.emit(leaves)
            return tree.unflatten(self._out_tree, outs)
        if not runtime().calls_host():
            _fail(
                self.__name__,
                "the device's programs cannot call the host",
                'run on the CPU, or with the backend "pjrt".',
            )
        if self._kind == "io_callback" and not self._outputs:
            _fail(self.__name__, "it has no result", "use xf.debug.callback.")
        identity.let_change(self.fun)  # State that it changes does not lead to another program.
        given = leaves or as_outputs(
            self.__name__, [0], tree.structure(0)
        )  # to determine the device
        outs = bind(call, given)
        if self._kind == "io_callback":
            # Without an effect, the call would be removed together with an unused result.
            effects.emit(Callback(_seen, tree.structure(((0,), {})), ()), outs[:1])
        return tree.unflatten(self._out_tree, outs)


def _seen(_: Tensor) -> None:
    pass


@dataclasses.dataclass(frozen=True, eq=False)
class _Call(Primitive):
    """The primitive of a callback to the host."""

    callback: Fun
    structure: tree.Structure
    results: tuple[Aval, ...]
    method: str | None
    kind: str

    @property
    def outputs(self) -> tuple[Aval, ...]:
        return self.results

    @property
    def name(self) -> str:
        return f"{self.kind} of {function_name(self.callback)}"

    def run(self, operands: list[Tensor], results: list[Tensor]) -> None:
        """Call it, and write its results."""
        n = self.structure.num_leaves
        args, kwargs = tree.unflatten(self.structure, [x.clone() for x in operands[:n]])
        found = tree.leaves(self.callback(*args, **kwargs))
        if len(found) != len(results):
            fail(
                TreeMismatchError,
                f"{self.name} returned {len(found)} arrays, not {len(results)}",
                "return what result_shape_dtypes says.",
                at=None,
            )
        for x, out in zip(found, results, strict=True):
            t = self._array(x, out)
            wrong = t.dtype != out.dtype and (isinstance(x, Tensor) or t.ndim != 0)
            if t.shape != out.shape or wrong:
                fail(
                    TreeMismatchError,
                    f"{self.name} returned {short(t)}, not {short(out)}",
                    "return what result_shape_dtypes says.",
                    at=None,
                )
            out.copy_(t)

    def _array(self, x: object, like: Tensor) -> Tensor:
        try:
            return torch.as_tensor(from_numpy(x))
        except (TypeError, ValueError, RuntimeError):
            fail(
                TypeError,
                f"{self.name} returned {short_repr(x)} ({kind_of(x)}), not {short(like)}",
                "return tensors, NumPy arrays or numbers, as result_shape_dtypes says.",
                at=None,
            )

    def emit(self, args: Sequence[Tensor]) -> list[Tensor]:
        if is_eager():
            with functorch.bottom_level():  # Transforms would wrap what the callback computes.
                outs = [torch.zeros(o.shape, dtype=o.dtype) for o in self.outputs]
                self.run([x.detach().cpu() for x in args], outs)
            return outs
        if not self.outputs:
            return []
        name = f"python {next(_numbers)}"
        host_calls.register(name, self.run)
        result = [array_of(o) for o in self.outputs]
        effect = self.kind == "io_callback"
        call = host_calls.host_call
        return list(instruction(call, *args, name=name, result=result, side_effect=effect))

    def reverse_rule(self, wrt: tuple[bool, ...]) -> ReverseRule:
        self._no_derivative()

    def vjp(
        self, args: Sequence[Tensor], cts: Sequence[Tensor | None], wrt: tuple[int, ...]
    ) -> list[Tensor]:
        self._no_derivative()

    def jvp(self, args: Sequence[Tensor], tangents: Sequence[Tensor | None]) -> list[Tensor | None]:
        self._no_derivative()

    def batch(
        self, dims: Dims, n: int, args: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[int | None]]:
        if self.method is None:
            _fail(
                self.name,
                "it is batched",
                "choose a vmap_method."
                if self.kind == "pure_callback"
                else "use xf.map in place of xf.vmap.",
            )
        outputs = [0] * len(self.outputs)
        moved = [at_dim(a, d, None if d is None else 0, n) for a, d in zip(args, dims, strict=True)]
        if self.method == "sequential":
            mapped = [a for a, d in zip(moved, dims, strict=True) if d is not None]

            def step(_: None, xs: list[Tensor]) -> tuple[None, list[Tensor]]:
                rest = iter(xs)
                full = [a if d is None else next(rest) for a, d in zip(moved, dims, strict=True)]
                return None, bind(self, full)

            return scan(step, None, mapped)[1], [*outputs]
        size = n if self.method == "broadcast_all" else 1
        moved = [
            a if d is not None else a.unsqueeze(0).expand(size, *a.shape)
            for a, d in zip(moved, dims, strict=True)
        ]
        wider = tuple(Aval((n, *o.shape), o.dtype) for o in self.outputs)
        return bind(dataclasses.replace(self, results=wider), moved), [*outputs]

    def _no_derivative(self) -> NoReturn:
        _fail(
            self.name,
            "it is differentiated",
            "give it a derivative with xf.custom_jvp or xf.custom_vjp, or pass x.detach().",
        )


def _aval(x: object, kind: str) -> Aval:
    if isinstance(x, (Tensor, ShapeDtypeStruct)):
        return Aval(tuple(x.shape), x.dtype)
    fail(
        TypeError,
        f"{kind} was given {short_repr(x)} ({kind_of(x)}) among result_shape_dtypes",
        "give an xf.ShapeDtypeStruct for each array of the result.",
    )


def _fail(name: str, problem: str, hint: str) -> NoReturn:
    trace = tracing.current()
    fail(UnsupportedOpError, f"{name}: {problem}", hint, function=trace.name if trace else None)
