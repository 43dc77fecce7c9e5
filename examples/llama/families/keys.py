"""Keys of `config.json` that several families have, but not all."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .fields import Fields
from .parts import Experts

if TYPE_CHECKING:
    from ..model.sizes import Config

_KINDS = {"full_attention": False, "sliding_attention": True}


def read_biases(fields: Fields) -> dict[str, bool]:
    """`attention_bias`: of all four maps of attention."""
    both = bool(fields.take("attention_bias"))
    return {"qkv_bias": both, "out_bias": both}


def read_windows(
    fields: Fields, window: int | None = None, is_local: Callable[[int], bool] = lambda i: True
) -> dict[str, Any]:
    """Which layers have a window.

    Args:
        fields: the keys, of which `layer_types` is read.
        window: the tokens that a token sees there; None: all layers see all tokens.
        is_local: whether a layer has the window, unless `layer_types` says so.
    """
    kinds, layers = fields.take("layer_types"), fields.take("num_hidden_layers")
    if kinds is not None and (len(kinds) != layers or not set(kinds) <= set(_KINDS)):
        known = " or ".join(map(repr, _KINDS))
        fields.refuse("layer_types", f"and it must have {layers}, each {known}")
    local = [is_local(i) for i in range(layers)] if kinds is None else [_KINDS[k] for k in kinds]
    if window is None or not any(local):
        return {}
    return {"window": window, "full_layers": tuple(i for i in range(layers) if not local[i])}


def write_windows(c: Config) -> dict[str, Any]:
    """`sliding_window` and `layer_types`."""
    names = {local: name for name, local in _KINDS.items()}
    kinds = [names[local] for local in c.local_layers]
    return {"sliding_window": c.window, "layer_types": kinds}


def write_experts(c: Config, **names: str) -> dict[str, Any]:
    """The experts' sizes, by the names of their fields."""
    return {key: getattr(c.experts or Experts(), name) for key, name in names.items()}
