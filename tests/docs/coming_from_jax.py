"""What each row of docs/coming-from-jax.md is tried with, in JAX and in xfunc.

A snippet is the text of JAX; that of xfunc comes of it by replacing the names as the row says, and
``jnp`` by ``torch``. Where that is not enough, a snippet is a pair of both texts. Its value is that
of its last line. `tests/record/coming_from.py` records what JAX gives.
"""

# ruff: noqa: E501 (a snippet is as long as it is)

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from tests.docs import snippets_of_the_rest as rest
from tests.docs import snippets_of_transforms as transforms
from tests.docs.snippets_of_transforms import Snippet

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "coming-from-jax.md").read_text(encoding="utf-8")
DATA = Path(__file__).parents[1] / "data" / "coming_from_jax.json"
TABLES = [
    [c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]]
    for line in PAGE.splitlines()
    if line.startswith("| ")
]
ROWS = [row for row in TABLES if not set(row[0]) <= set("- ") and row[0] != "JAX"]

SNIPPETS: dict[str, list[Snippet]] = {**transforms.SNIPPETS, **rest.SNIPPETS}

# Short names that a row of the page stands for in full, where they do not continue the first one.
_MODULES = {"axis_size": "jax.lax", "fold_in": "jax.random"}


def names_in(row: list[str]) -> dict[str, str]:
    """The names of JAX that a row of the page replaces, and what by."""
    old = re.findall(r"`((?:jax|orbax|flax|chex)[\w.]*|\.?[a-z]\w*)`", row[0])
    new = re.findall(r"`(xf\.[\w.]+)", row[1])
    prefix = old[0].rpartition(".")[0] if old else ""
    full = [
        n if n.startswith(("jax", "chex", "orbax", "flax")) else f"{prefix}.{n.strip('.')}"
        for n in old
    ]
    return dict(zip(full, new, strict=False)) if len(full) <= len(new) else {}


REPLACED = {k: v for row in ROWS if len(row) == 3 for k, v in names_in(row).items()}
_WORDS = {
    "jnp.concatenate": "torch.cat",
    "jnp.array": "torch.tensor",
    "jnp.float32": "torch.float32",
    "jnp": "torch",
    "jax.effects_barrier()": "xf.block_until_ready(())",
}


def key_of(row: list[str]) -> str:
    """What a row goes by: its first code."""
    return re.findall(r"`([^`]+)`", row[0])[0] if "`" in row[0] else row[0]


def in_jax(snippet: Snippet) -> str:
    return snippet if isinstance(snippet, str) else snippet[0]


def in_xfunc(snippet: Snippet) -> str:
    """The text of xfunc."""
    if not isinstance(snippet, str):
        return snippet[1]
    table = {**REPLACED, **_WORDS}
    words = sorted(map(re.escape, table), key=len, reverse=True)
    return re.sub(rf"(?<![\w.])({'|'.join(words)})(?!\w)", lambda m: table[m[1]], snippet)


def value_of(text: str, names: dict[str, Any]) -> Any:
    """Run the text; the value of its last line."""
    body = ast.parse(text).body
    last = body.pop()
    assert isinstance(last, ast.Expr), text
    space = dict(names)
    exec(compile(ast.Module(body, []), "<snippet>", "exec"), space)
    return eval(compile(ast.Expression(last.value), "<snippet>", "eval"), space)


INPUTS = {
    "x": [0.5, -1.25, 2.0],
    "v": [1.5, 0.25, -0.75],
    "m": [[0.5, -1.0, 2.0], [1.5, 0.25, -0.5]],
    "n": [2, 0, 1],
}

# The error of each side: classes that the row's cells name, and are given by code.
_MESH = "mesh = jax.make_mesh((1,), ('i',))\n"
RAISES: dict[str, str] = {
    "ConcretizationTypeError": "jax.jit(lambda x: x if x.sum() > 0 else -x)(x)",
    "UnexpectedTracerError": "kept = []\njax.jit(lambda x: kept.append(x * 2))(x)\nkept[0] + 1",
    "TypeError": "jax.lax.scan(lambda c, y: ((c, c), y), 0.0, x)",
    "NonConcreteBooleanIndexError": "jax.jit(lambda x: x[x > 0])(x)",
    "ValueError": _MESH + "jax.jit(lambda x: jax.lax.with_sharding_constraint(x, jax.sharding.NamedSharding(mesh, jax.P('i', 'j', 'k'))))(x)",
}  # fmt: skip

# Rows whose left side is not JAX's own, or nothing, or needs a machine that fails.
UNTRIED = {
    "equinox.partition", "f._cache_size()", "chex.assert_max_traces", "none", "orbax.checkpoint",
    "dropout", "flax.nnx.split", "none: side effects happen once, at trace time",
    "XlaRuntimeError", "errors of orbax", "none: symbolic shapes are for export only",
    "jax.distributed.initialize", "jax.distributed.is_initialized", "jax.distributed.shutdown",
    "jax.make_array_from_process_local_data", "jax.experimental.multihost_utils.process_allgather",
    "jax.sharding.Sharding.addressable_devices_indices_map",
    "jax.experimental.multihost_utils.broadcast_one_to_all",
    "jax.experimental.multihost_utils.sync_global_devices",
    "jax.log_compiles", "jax.tree_util.Partial",
}  # fmt: skip


def plain(x: Any) -> Any:
    """A result as JSON: an array as its dtype and its values."""
    if isinstance(x, dict):
        return {str(k): plain(x[k]) for k in sorted(x)}
    if isinstance(x, (list, tuple)):
        return [plain(v) for v in x]
    if x is None or isinstance(x, (bool, int, float, str)):
        return x
    return {"dtype": str(x.dtype).removeprefix("torch."), "values": x.tolist()}


def raised(text: str, names: dict[str, Any]) -> list[str]:
    """The names of the class of the error that a text ends in, and of its bases."""
    try:
        value_of(text, names)
    except Exception as error:
        return [c.__name__ for c in type(error).__mro__]
    return []
