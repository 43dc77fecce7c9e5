"""Kernels take what the schemas of their operations say, and are annotated with it."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator

import pytest
import torch

from xfunc.ops import registry
from xfunc.trace import recorder

pytestmark = pytest.mark.quick

# Of a type in a schema, what an annotation may say; wider ones serve several overloads.
_SAID = {
    "Tensor": {"Tensor"},
    "number": {"float", "complex", "Number", "Tensor"},
    "float": {"float", "complex"},
    "bool": {"bool"},
    "str": {"str"},
    "List[int]": {"Sequence", "list", "tuple", "Size"},
    "List[Tensor]": {"Sequence", "list", "tuple"},
}


def _schema(name: str) -> torch._C.FunctionSchema:
    base, _, overload = name.partition(".")
    return torch._C._get_schema(f"aten::{base}", overload)


def _problems(name: str, kernel: Callable[..., object]) -> Iterator[str]:
    """Where a kernel disagrees with the schema of its operation."""
    hints = typing.get_type_hints(kernel)
    parameters = list(inspect.signature(kernel).parameters.values())
    positions = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    kinds = {p.kind for p in parameters}
    for k, argument in enumerate(_schema(name).arguments):
        if argument.kwarg_only:
            found = next((p for p in parameters if p.name == argument.name), None)
            rest = inspect.Parameter.VAR_KEYWORD
        else:
            found = positions[k] if k < len(positions) else None
            rest = inspect.Parameter.VAR_POSITIONAL
        if found is None:
            if rest not in kinds:
                yield f"{name} does not take {argument.name}"
            continue
        said = str(hints.get(found.name, object))
        kind = str(argument.type)
        optional = kind.startswith("Optional[")
        kind = kind.removeprefix("Optional[").removesuffix("]") if optional else kind
        if "object" in said or "typing.Any" in said:
            continue
        if optional and "None" not in said and "Optional" not in said:
            yield f"{name} takes no None for {found.name}: {said}"
        if kind in _SAID and not any(word in said for word in _SAID[kind]):
            yield f"{name} takes {kind} for {found.name}, which says {said}"


@pytest.mark.parametrize("table", ["_kernels", "_compositions", "_batched"])
def test_kernel_annotations_match_schemas(table: str) -> None:
    recorder.start()
    found: list[str] = []
    checked = 0
    for name, function in vars(registry)[table].items():
        kernel = inspect.unwrap(function)
        if kernel.__module__.startswith("xfunc.ops."):  # not one of torch's decompositions
            checked += 1
            found += _problems(name, kernel)
    assert checked > 5
    assert found == []
