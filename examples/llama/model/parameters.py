"""The parameters of a model: their shapes, shardings and initial values."""

import functools
import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

import xfunc as xf

from .sizes import Config, Experts, Stack

Params: TypeAlias = dict[str, Any]


@functools.partial(xf.jit, static_argnames=("config", "dtype"))
def init(config: Config, seed: int | Tensor = 0, dtype: torch.dtype = torch.float32) -> Params:
    """Random parameters, on the device: norms are the identity, biases zero, and matrices normal,
    scaled by their fan-in.

    They depend only on `seed`. Under a `jit` with ``out_shardings`` each device makes only its
    shard.
    """
    tree = weights(config)
    keys = iter(xf.random.split(xf.random.key(seed), len(xf.tree.leaves(tree))))

    def made(part: Any) -> Any:  # in the order of `weights`, not of names
        if isinstance(part, dict):
            return {name: made(inner) for name, inner in part.items()}
        if part.kind == "matrix":
            return xf.random.normal(next(keys), part.shape, dtype) * part.shape[-1] ** -0.5
        return torch.full(part.shape, float(part.kind == "one"), dtype=part.in_dtype(dtype))

    return made(tree)


def shapes(config: Config, dtype: torch.dtype = torch.bfloat16) -> Params:
    """The tree of `init`, with shapes only: 405 billion parameters fit on a laptop."""
    return xf.tree.map(lambda w: xf.ShapeDtypeStruct(w.shape, w.in_dtype(dtype)), weights(config))


def count(config: Config) -> int:
    """The number of parameters."""
    return sum(math.prod(leaf.shape) for leaf in xf.tree.leaves(shapes(config)))


def decayed(config: Config) -> Params:
    """Whether each parameter has weight decay: matrices do, and embeddings."""
    tree: Any = weights(config)
    return xf.tree.map(lambda w: w.kind == "matrix", tree)


def is_stack(name: str) -> bool:
    """Whether a part of the parameters has the weights of layers, see `Config.stacks`."""
    return name.partition("_")[0] == "layers"


def is_buffer(path: str) -> bool:
    """Whether the parameter at a key path is one that no gradient trains, see `Weight`."""
    return path.endswith("['choice_bias']")


def with_buffers(params: Any, old: Any) -> Any:
    """Parameters with the buffers of others."""
    return xf.tree.map_with_path(lambda path, p, o: o if is_buffer(path) else p, params, old)


def cast(params: Any, dtype: torch.dtype) -> Any:
    """Parameters in a dtype; buffers in float32 at least."""
    least = torch.float32
    return xf.tree.map_with_path(
        lambda path, p: p.to(torch.promote_types(p.dtype, least) if is_buffer(path) else dtype),
        params,
    )


@dataclass(frozen=True)
class Weight:
    """The description of a parameter.

    Its kind says what it is at first: a `matrix`, normal; or all `one` or all `zero`. A `buffer` is
    zero, too, and no gradient trains it: it is in float32 at least, and has no decay.
    """

    shape: tuple[int, ...]
    kind: str
    lies: str  # the field of `Sharding` that gives its sharding

    def in_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """The dtype it is kept in, where others are in `dtype`."""
        return torch.promote_types(dtype, torch.float32) if self.kind == "buffer" else dtype


def weights(c: Config) -> Params:
    """The description of each parameter, in the tree of `init`."""
    table = Weight((c.vocab, c.hidden), "matrix", "embed")
    last = Weight((c.hidden,), "zero" if c.traits.offset_norms else "one", "norm")
    stacks = {stack.name: _stack(c, stack) for stack in c.stacks}
    params = {"embed": table, **stacks, "norm": last}
    return params if c.tied else params | {"head": table}


def _stack(c: Config, stack: Stack) -> Params:
    q, kv, n = c.heads * c.head_dim, c.kv_heads * c.head_dim, len(stack.layers)

    def norm(size: int, lies: str = "layer_norm") -> Weight:
        return Weight((n, size), "zero" if c.traits.offset_norms else "one", lies)

    def into(size: int) -> Weight:
        return Weight((n, size, c.hidden), "matrix", "into")

    def out_of(size: int) -> Weight:
        return Weight((n, c.hidden, size), "matrix", "out_of")

    def bias(size: int, lies: str = "layer_bias") -> Weight:
        return Weight((n, size), "zero", lies)

    maps = {"wq": into(q), "wk": into(kv), "wv": into(kv)}
    biases = {"bq": bias(q), "bk": bias(kv), "bv": bias(kv)}
    if (latent := c.latent) is not None:
        low = latent.keys + latent.rotary
        maps = {"wq": maps["wq"]}
        biases = {"bkv_a": bias(low, "whole")}
        if (size := latent.queries) is not None:
            maps = {
                "wq_a": Weight((n, size, c.hidden), "matrix", "router"),
                "q_a_norm": norm(size, "whole"),
                "wq_b": Weight((n, q, size), "matrix", "into"),
            }
            biases |= {"bq_a": bias(size, "whole")}
        both = c.heads * (latent.plain + latent.values)
        maps |= {
            "wkv_a": Weight((n, low, c.hidden), "matrix", "router"),
            "kv_a_norm": norm(latent.keys, "whole"),
            "wkv_b": Weight((n, both, latent.keys), "matrix", "into"),
        }
    layers = {
        **({"attn_norm": norm(c.hidden)} if c.traits.norms_before else {}),
        **maps,
        "wo": out_of(c.heads * c.value_dim),
        **({"mlp_norm": norm(c.hidden)} if c.traits.norms_before else {}),
    }
    if size := c.intermediate if stack.experts is None else stack.experts.shared:
        layers |= {"w_gate": into(size)} if c.traits.gated else {}
        layers |= {"w_up": into(size), "w_down": out_of(size)}
    if stack.experts is not None:
        layers |= _experts(c, stack.experts, n)
    if c.qkv_bias:
        layers |= biases
    if c.out_bias:
        layers |= {"bo": bias(c.hidden, "layer_norm")}
    if c.mlp_bias:
        layers |= {"b_gate": bias(c.intermediate)} if c.traits.gated else {}
        layers |= {"b_up": bias(c.intermediate), "b_down": bias(c.hidden, "layer_norm")}
    if c.traits.qk_norm == "head" and c.qk_norms:
        layers |= {"q_norm": norm(c.head_dim, "whole"), "k_norm": norm(c.head_dim, "whole")}
    elif c.traits.qk_norm == "all" and c.qk_norms:
        layers |= {"q_norm": norm(q, "layer_bias"), "k_norm": norm(kv, "layer_bias")}
    if c.traits.sinks:
        layers |= {"sinks": bias(c.heads)}
    if c.traits.norms_after:
        layers |= {"attn_out_norm": norm(c.hidden), "mlp_out_norm": norm(c.hidden)}
    return layers


def _experts(c: Config, e: Experts, n: int) -> Params:
    into = Weight((n, e.count, e.intermediate, c.hidden), "matrix", "into_experts")
    out_of = Weight((n, e.count, c.hidden, e.intermediate), "matrix", "out_of_experts")
    router = Weight((n, e.count, c.hidden), "matrix", "router")
    found = {"router": router, "e_gate": into, "e_up": into, "e_down": out_of}
    if c.traits.expert_biases:
        into_bias = Weight((n, e.count, e.intermediate), "zero", "expert_features")
        found |= {"b_router": Weight((n, e.count), "zero", "whole")}
        found |= {"be_gate": into_bias, "be_up": into_bias}
        found |= {"be_down": Weight((n, e.count, c.hidden), "zero", "expert_biases")}
    if c.traits.sigmoid_router:
        found |= {"choice_bias": Weight((n, e.count), "buffer", "whole")}
    if e.shared and c.traits.shared_gate:
        found |= {"shared_gate": Weight((n, 1, c.hidden), "matrix", "router")}
    return found


class NotFiniteError(ValueError):
    """Weights, or logits computed with them, are infinite or NaN."""


def check_finite(params: Params, name: str, hint: str) -> None:
    """Raise an error, in which the weights are called `name`, if they are not finite."""
    wrong, arrays = not_finite(params)
    if wrong:
        raise NotFiniteError(
            f"{name} has weights that are not finite, in {wrong} of {arrays} arrays: {hint}"
        )


def not_finite(params: Params) -> tuple[int, int]:
    """How many arrays have elements that are not finite, and how many arrays there are."""
    finite = xf.jit(lambda params: xf.tree.map(lambda p: torch.isfinite(p).all(), params))
    found = xf.tree.leaves(xf.device_get(finite(params)))
    return sum(not leaf for leaf in found), len(found)
