"""Programs for a range of shapes as files: see `xfunc.export`.

A file holds the program of each bucket, as ``program-<k>.hlo`` and ``program-<k>.stablehlo``. It
takes the leaves of the arguments padded to the bucket's shape, with anything in the padding, and
then the actual size of each `Dim` as an int64 scalar; its results must be cut to their shapes.
``header.json`` contains

- ``symbols``: for each `Dim`, in order, its name, its smallest and largest size, and the common
  divisor of its sizes;
- ``buckets``: the sizes of each;
- ``first``: for each bucket the smallest sizes of its `Dim`s that its program serves, if it does
  not serve all: calls with smaller ones are refused;
- ``input_avals`` and ``output_avals``: for each array its sizes and its dtype. A size is a number
  or a polynomial, written as a list of terms ``[numerator, denominator, {name: power, ...}]``.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import torch
import torch.nn.functional as F

from xfunc import tree
from xfunc.backends.pjrt import printer
from xfunc.core.archive import check_names
from xfunc.core.avals import Aval
from xfunc.core.structures import encode
from xfunc.core.types import Shaped
from xfunc.export.files import kept, refuse_effects, register
from xfunc.export.loaded import Exported, loaded
from xfunc.hlo import Module
from xfunc.stages.stages import Parts, Traced
from xfunc.symbolic.binding import Declared, sizes_at
from xfunc.symbolic.bucket import Bucket
from xfunc.symbolic.dim import dimension
from xfunc.symbolic.lowered import LoweredRange, of_bucket, refuse_small
from xfunc.symbolic.pad import pad, unpad
from xfunc.symbolic.polynomial import Polynomial, Size, value
from xfunc.symbolic.shape_domain import Range, ShapeDomain
from xfunc.trace import portable, recorder, tracing

_FORMAT = 3
_HEADER = "header.json"


def _write(lowered: LoweredRange) -> dict[str, bytes]:
    """The parts of a file."""
    buckets = lowered.buckets
    bucket, traced = lowered.typical
    entry = traced.parts.entry
    refuse_effects(entry)
    declared, name = lowered.declared, lowered.name
    dims = [
        a.shape if d is None else d for a, d in zip(lowered.in_avals, declared.dims, strict=True)
    ]
    names = list(declared.box.ranges)
    header = {
        "format": _FORMAT,
        "name": name,
        "inputs": encode(lowered.in_tree, f"the arguments of {name}"),
        "input_avals": _written(dims, [a.dtype for a in lowered.in_avals]),
        "outputs": encode(entry.out_tree, f"the result of {name}"),
        "output_avals": _outputs(bucket, traced),
        "bucket_output_avals": [_outputs(*pair) for pair in buckets.values()],
        "static": lowered.static_positions,
        "symbols": [[n, r.min, r.max, r.step] for n, r in declared.box.ranges.items()],
        "buckets": [dict(zip(names, sizes, strict=True)) for sizes in buckets],
        "first": [dict(bucket.served.first) for bucket, _ in buckets.values()],
        **kept(lowered.in_avals, entry.donated),
    }
    contents = {_HEADER: json.dumps(header, indent=1).encode()}
    for k, (key, (bucket, source)) in enumerate(buckets.items()):
        parts = of_bucket(bucket, source, len(key)).traced.parts
        module = _module(parts, source.parts.entry.program.captures, len(dims))
        contents[f"program-{k}.hlo"] = module.to_bytes()
        contents[f"program-{k}.stablehlo"] = printer.stablehlo_bytecode(module)
    return contents


def _outputs(bucket: Bucket, traced: Traced) -> list[list[object]]:
    return _written(bucket.outputs, [a.dtype for a in traced.parts.entry.outputs])


def _module(parts: Parts, captures: Sequence[torch.Tensor], arguments: int) -> Module:
    """The program of a bucket, with the tensors that the function holds: see `bucket._entry`."""
    lowering = parts.lowering
    held = dict(enumerate(captures, start=arguments))
    return portable.whole(lowering, held, lines=False, tiles=parts.tiles)


class ExportedRange(Exported):
    """A loaded program for a range of shapes."""

    def __init__(self, header: Mapping[str, Any], contents: Mapping[str, bytes]):
        box = ShapeDomain({n: Range(int(a), int(b), int(k)) for n, a, b, k in header["symbols"]})
        avals = _read(header["input_avals"], box)
        self._describe(header, avals)
        envs = [{n: int(env[n]) for n in box.ranges} for env in header["buckets"]]
        kinds = "hlo", "stablehlo"
        parts = {f"program-{k}.{kind}" for k in range(len(envs)) for kind in kinds}
        check_names(contents, {_HEADER, *parts})
        self.buckets = tuple(
            (env, contents[f"program-{k}.stablehlo"]) for k, env in enumerate(envs)
        )
        self.stablehlo = self.buckets[-1][1]
        # Files written before programs were compared at all small sizes do not have it.
        self._first = header.get("first", [{}] * len(envs))
        if len(self._first) != len(envs) or any(set(f) - {*box.ranges} for f in self._first):
            raise ValueError("its buckets have other sizes")
        self._dims = [_dims(sizes) for sizes, _ in header["input_avals"]]
        self._results = _read(header["output_avals"], box)
        # Files written before each bucket had its own have one form for all.
        of_all = [header["output_avals"]] * len(envs)
        written = header.get("bucket_output_avals", of_all)
        self._out_dims = [[_dims(sizes) for sizes, _ in outs] for outs in written]
        if {len(self._results), *map(len, written)} != {self._outputs.num_leaves}:
            raise ValueError("its buckets have other results")
        self._declared = Declared(self.name, self._labels, tuple(self._dims), box)
        self._programs = [
            loaded(
                self.name,
                contents[f"program-{k}.hlo"],
                [*_at(avals, self._dims, env), *[Aval((), torch.int64)] * len(env)],
                _at(_read(outs, box), dims, env),
            )
            for k, (env, outs, dims) in enumerate(zip(envs, written, self._out_dims, strict=True))
        ]

    @property
    def out_info(self) -> tree.PyTree:
        return tree.unflatten(self._outputs, self._results)

    def _is_like(self, x: Shaped, want: Aval) -> bool:
        pairs = itertools.zip_longest(x.shape, want.shape)
        return x.dtype == want.dtype and all(
            n is not None and d is not None and (n == d or not isinstance(d, int)) for n, d in pairs
        )

    def _run(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        env = self._declared.bind([tuple(x.shape) for x in tensors])
        k = next(
            k for k, (b, _) in enumerate(self.buckets) if all(s <= b[n] for n, s in env.items())
        )
        refuse_small(self.name, self._first[k], env)
        bucket, traced = self.buckets[k][0], tracing.current() is not None
        wide = [
            (_padded if traced else pad)(x, sizes_at(d, tuple(x.shape), bucket))
            for x, d in zip(tensors, self._dims, strict=True)
        ]
        sizes = [_scalar(s, traced) for s in env.values()]
        outs = self._apply(self._programs[k], wide, sizes)
        shapes = [
            sizes_at(d, tuple(x.shape), env) for x, d in zip(outs, self._out_dims[k], strict=True)
        ]
        if traced:
            return [x[tuple(map(slice, s))] for x, s in zip(outs, shapes, strict=True)]
        return [unpad(x, s) for x, s in zip(outs, shapes, strict=True)]


def _padded(x: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """A traced value padded with zeros at the end."""
    behind = [high - n for n, high in zip(x.shape, shape, strict=True)]
    return F.pad(x, [n for b in reversed(behind) for n in (0, b)]) if any(behind) else x


def _scalar(n: int, traced: bool) -> torch.Tensor:
    if traced:
        return torch.full((), n, dtype=torch.int64, device=recorder.device())
    return torch.tensor(n, device="cpu")


def _written(
    dims: Iterable[Sequence[Size | None]], dtypes: list[torch.dtype]
) -> list[list[object]]:
    return [
        [[_size(d) for d in sizes], str(dtype).removeprefix("torch.")]
        for sizes, dtype in zip(dims, dtypes, strict=True)
    ]


def _size(d: Size | None) -> object:
    if not isinstance(d, Polynomial):
        return d
    return [[Fraction(c).numerator, Fraction(c).denominator, dict(m)] for m, c in d.terms]


def _dims(written: Any) -> tuple[Size, ...]:
    """Sizes as `_size` wrote them."""
    return tuple(
        d
        if isinstance(d, int)
        else Polynomial.of(
            (tuple(sorted((str(s), int(e)) for s, e in m.items())), Fraction(int(n), int(k)))
            for n, k, m in d
        )
        for d in written
    )


def _read(written: Any, box: ShapeDomain) -> tuple[Aval, ...]:
    return tuple(
        Aval([dimension(d, box) for d in _dims(sizes)], getattr(torch, dtype))
        for sizes, dtype in written
    )


def _at(
    avals: Iterable[Aval], dims: Iterable[Sequence[Size]], env: Mapping[str, int]
) -> list[Aval]:
    return [Aval([value(s, env) for s in d], a.dtype) for a, d in zip(avals, dims, strict=True)]


register(LoweredRange, _write, _FORMAT, ExportedRange)
