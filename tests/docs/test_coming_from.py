"""docs/coming-from-jax.md lists xfunc's names for JAX's, and the differences: each row is tried.

What JAX gives is recorded in ``tests/data/coming_from_jax.json``; see `coming_from_jax.py`.
"""

import ast
import inspect
import json
import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import xfunc as xf
from tests.docs.coming_from_jax import (
    DATA,
    INPUTS,
    PAGE,
    RAISES,
    ROWS,
    SNIPPETS,
    UNTRIED,
    in_jax,
    in_xfunc,
    key_of,
    names_in,
    plain,
    raised,
    value_of,
)

ROOT = Path(__file__).parents[2]
RECORD = json.loads(DATA.read_text(encoding="utf-8"))
NAMED = {name for row in ROWS for c in row[1:] for name in re.findall(r"`xf\.([\w.]+)", c)}
NAMES: dict[str, Any] = {
    k: torch.tensor(x, dtype=torch.int32 if isinstance(x[0], int) else torch.float32)
    for k, x in INPUTS.items()
} | {"torch": torch, "xf": xf}

# -- every row, and what JAX gives for it ---------------------------------------------------------


@pytest.mark.parametrize("row", ROWS, ids=key_of)
def test_jax_page_row_has_snippet(row: list[str]) -> None:
    key = key_of(row)
    if key in UNTRIED:
        assert key not in SNIPPETS
    elif key in RAISES:
        assert in_jax(RAISES[key]) in RECORD["errors"]
    else:
        assert SNIPPETS[key]
        assert all(in_jax(s) in RECORD["values"] for s in SNIPPETS[key])


def test_jax_snippets_belong_to_rows() -> None:
    assert {*SNIPPETS, *RAISES, *UNTRIED} == set(map(key_of, ROWS))


def pairs(got: Any, want: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Leaves of two results of one structure."""
    if isinstance(want, dict) and "dtype" not in want and isinstance(got, dict):
        assert got.keys() == want.keys(), path
        for k in want:
            yield from pairs(got[k], want[k], f"{path}[{k!r}]")
    elif isinstance(want, list) and isinstance(got, list):
        assert len(got) == len(want), path
        for i, (g, w) in enumerate(zip(got, want, strict=True)):
            yield from pairs(g, w, f"{path}[{i}]")
    else:
        yield path, got, want


# The page says so for all: integers are int64, and there are no unsigned ones of 32 bits.
SAME_KINDS = {"int64": "int32", "uint32": "int32"}


@pytest.mark.sample(12, seed=0)
@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
@pytest.mark.parametrize(
    ("key", "number"), [(k, i) for k, row in SNIPPETS.items() for i in range(len(row))]
)
def test_jax_snippet_values_equal_jax(key: str, number: int) -> None:
    snippet = SNIPPETS[key][number]
    want = RECORD["values"][in_jax(snippet)]
    found = value_of(in_xfunc(snippet), NAMES)
    for path, g, w in pairs(plain(found), want):
        if not isinstance(w, dict):
            assert (type(g), g) == (type(w), w), path
            continue
        assert isinstance(g, dict), path
        kinds = [SAME_KINDS.get(x["dtype"], x["dtype"]) for x in (g, w)]
        assert kinds[0] == kinds[1], path
        a, b = (torch.tensor(x["values"], dtype=torch.float64) for x in (g, w))
        if w["dtype"] == "uint32":
            a, b = a % 2**32, b % 2**32
        torch.testing.assert_close(
            a, b, rtol=2e-5, atol=1e-6, equal_nan=True, msg=f"{path}: {a}, {b}"
        )


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize("key", RAISES)
def test_jax_row_errors_are_raised(key: str) -> None:
    cells = next(row for row in ROWS if key_of(row) == key)
    text = RAISES[key]
    named = [re.findall(r"`(?:xf\.errors\.)?(\w*Error)`", c) for c in cells]
    assert set(named[0]) & set(RECORD["errors"][in_jax(text)])
    assert set(named[1]) & set(raised(in_xfunc(text), NAMES))


# -- parameters -----------------------------------------------------------------------------------

# What no function takes, as the beginning of the page says.
NOWHERE = set(
    re.findall(r"`(\w+)`", re.findall(r"No function takes (.*?)\.\n", PAGE, re.DOTALL)[0])
)


@pytest.mark.parametrize("row", [r for r in ROWS if len(r) == 3 and names_in(r)], ids=key_of)
def test_jax_row_parameters_equal_jax_or_are_documented(row: list[str]) -> None:
    for theirs, ours in names_in(row).items():
        recorded = RECORD["parameters"].get(theirs)
        function = value_of(ours, NAMES)
        if recorded is None or not callable(function):
            continue
        own = inspect.signature(function).parameters
        kinds = {p.kind for p in own.values()}
        if inspect.Parameter.VAR_KEYWORD in kinds:
            continue
        for name, default, kind in recorded:
            if default is None or kind.startswith("VAR") or name in NOWHERE or name[0] == "_":
                continue
            assert name in own or f"`{name}" in row[2], (theirs, name)
        order = [name for name, _, kind in recorded if kind == "POSITIONAL_OR_KEYWORD"]
        assert [n for n in own if n in order] == [n for n in order if n in own]


# -- names ----------------------------------------------------------------------------------------
def public_names() -> set[str]:
    """What `xfunc.__all__` names, and the functions of the modules among it.

    The common names of `xf.sharding` are on `xf` too, and count there.
    """
    found = set()
    for name in xf.__all__:
        value = getattr(xf, name)
        inside = members(value) if isinstance(value, types.ModuleType) else ()
        found |= {f"{name}.{member}" for member in inside} or {name}
    return {n for n in found if n.rpartition(".")[0] != "sharding" or not hasattr(xf, n[9:])}


def members(module: types.ModuleType) -> set[str]:
    """The public functions of a module; of a module of errors, the errors."""
    wanted = inspect.isclass if module is xf.errors else inspect.isfunction
    own = (ast.parse(inspect.getsource(module))).body
    made_here = {node.name for node in own if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    for node in own:
        if isinstance(node, ast.ImportFrom):
            made_here |= {alias.asname for alias in node.names if alias.asname}
    return {n for n, _ in inspect.getmembers(module, wanted) if n in made_here and n[0] != "_"}


# On no page: the base class, and what only xfunc itself calls. On others: what JAX has no name for.
ELSEWHERE = {
    "errors.XfuncError", "tree.adopt", "tree.adopt_class", "__version__", "stages", "memory_stats",
    "call_jax", "aot.topology_of",
}  # fmt: skip
ELSEWHERE |= {f"optim.{name}" for name in members(xf.optim)}  # optax's names, not JAX's


def test_jax_page_names_every_public_name() -> None:
    assert public_names() - NAMED - ELSEWHERE == set()


@pytest.mark.parametrize("name", sorted(NAMED))
def test_jax_page_name_exists(name: str) -> None:
    value = xf
    for part in name.split("."):
        value = getattr(value, part)


def test_jax_page_tables_are_parsed() -> None:
    assert {"jit", "grad", "scan", "tree.map", "errors.LeakError"} <= NAMED
    assert {"jit", "checkpoint_policies.nothing_saveable", "tree.register"} <= public_names()
