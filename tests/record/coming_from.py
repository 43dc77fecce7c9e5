"""Record what JAX gives for the snippets of `coming_from_jax.py`, and its functions' parameters.

Run with an interpreter that has jax 0.7.1::

    pip install jax==0.7.1 && JAX_PLATFORMS=cpu python -m tests.record.coming_from

It writes ``tests/data/coming_from_jax.json``.
"""

from __future__ import annotations

import importlib
import inspect
import json
from typing import Any

from tests.docs.coming_from_jax import (
    DATA,
    INPUTS,
    RAISES,
    REPLACED,
    SNIPPETS,
    in_jax,
    plain,
    raised,
    value_of,
)


def parameters(name: str) -> list[list[Any]] | None:
    """Name, default and kind of each parameter of a function of JAX; None for what is none."""
    *path, last = name.split(".")
    try:
        function = getattr(importlib.import_module(".".join(path)), last)
        if not inspect.isroutine(function) and not inspect.isclass(function):
            return None
        found = inspect.signature(function).parameters.values()
    except (ImportError, AttributeError, TypeError, ValueError):
        return None
    empty = inspect.Parameter.empty
    return [[p.name, None if p.default is empty else repr(p.default), p.kind.name] for p in found]


def main() -> None:
    import jax  # pyright: ignore[reportMissingImports]
    import jax.numpy as jnp  # pyright: ignore[reportMissingImports]

    for module in ("ad_checkpoint", "export", "experimental.shard_alike", "flatten_util"):
        importlib.import_module(f"jax.{module}")
    names: dict[str, Any] = {k: jnp.array(x) for k, x in INPUTS.items()}
    names |= {"jax": jax, "jnp": jnp}
    values = {}
    for row in SNIPPETS.values():
        for snippet in row:
            text = in_jax(snippet)
            try:
                values[text] = plain(value_of(text, names))
            except Exception as error:
                raise RuntimeError(text) from error
    errors = {text: raised(text, names) for text in RAISES.values()}
    signatures = {name: parameters(name) for name in sorted(REPLACED) if name.startswith("jax.")}
    record = {"values": values, "errors": errors, "parameters": signatures}
    DATA.write_text(json.dumps(record, indent=0, sort_keys=True) + "\n", encoding="utf-8")
    print(f"{len(values)} values recorded from jax {jax.__version__} in {DATA}")


if __name__ == "__main__":
    main()
