"""Which weights are trained, and low-rank adapters for some of those that are not.

`trained` and `frozen` split the tree of parameters in two, and `join` puts it back together for the
model. What is frozen is in no state, gradient or checkpoint, so nothing can change it.

Sources: Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, 2021; Kalajdzievski, A Rank
Stabilization Scaling Factor for Fine-Tuning with LoRA, 2023.
"""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

import xfunc as xf
from xfunc import NamedSharding, P

from .. import checks, model
from ..model import Config, Params, quantised
from ..model.linear import Adapted
from ..model.parameters import is_stack

FULL, LORA, FROZEN = "full", "lora", "frozen"
# Adapters without a `down` of their own: in transformers, and so in PEFT, the two are one matrix.
SHARED = {"e_up": "e_gate"}


@dataclass(frozen=True)
class Tune:
    """Which weights are trained. By default all are; with patterns, weights that match none of them
    are frozen.

    Attributes:
        lora: patterns of the weights that get adapters, such as layers.w*.
        full: patterns of the weights that are trained directly. null: all if none gets an adapter,
            otherwise none.
        rank: the rank of the adapters.
        alpha: adapters' products are multiplied by this, divided by `rank`.
        rank_stabilised: whether to divide by the square root of the rank.
        base: bits of the matrices that no step changes. `nf4`: 4, with a scale for each 64 inputs
            of an output; null: as the model computes.
    """

    lora: tuple[str, ...] = ()
    full: tuple[str, ...] | None = None
    rank: int = 16
    alpha: float = 32.0
    rank_stabilised: bool = False
    base: Literal["nf4"] | None = None

    def __post_init__(self) -> None:
        checks.at_least(self, 1, "rank")
        checks.above_0(self, "alpha")

    @property
    def scale(self) -> float:
        """What the product of an adapter's two matrices is multiplied by."""
        return self.alpha / (math.sqrt(self.rank) if self.rank_stabilised else self.rank)


class Adapter(NamedTuple):
    """Trained in place of a weight, to which `scale * up @ down` is added.

    Stacks have more leading dimensions. `down` is None where it is another's, see `SHARED`.
    """

    down: Float[Tensor, "rank in"] | None
    up: Float[Tensor, "out rank"]


def roles(config: Config, tune: Tune) -> Params:
    """How each weight is trained: a tree like the parameters, of FULL, LORA and FROZEN."""
    shapes = named(model.shapes(config))
    full = ("*",) if tune.full is None and not tune.lora else tune.full or ()
    adapted, trained = (_matching(kind, list(shapes)) for kind in (tune.lora, full))
    if both := sorted(adapted & trained):
        raise ValueError(f"{', '.join(both)}: both in lora and in full; remove it from one")
    if wrong := sorted(name for name in adapted if not _has_products(name, shapes[name])):
        raise ValueError(
            f"{', '.join(wrong)}: adapters are for matrices only; name it in full, or remove "
            "it from lora"
        )
    for name in shapes:
        other = sharer(name)
        if (name in adapted) != (other in adapted):
            raise ValueError(
                f"only one of {other} and {name} is in lora, but their adapters share a matrix: "
                "name both, or neither"
            )
    if tune.base is not None and len(trained) == len(shapes):
        raise ValueError(
            f"base is {tune.base}, but no weight is frozen: name some in lora, or leave base out"
        )
    if not adapted | trained:
        raise ValueError("nothing is trained: name weights in lora or full, such as layers.w*")
    found = {name: LORA if name in adapted else FROZEN for name in shapes}
    found |= dict.fromkeys(trained, FULL)
    return nested(found)


def sharer(name: str) -> str:
    """The weight whose adapter has the first matrix of another weight's; itself, if it has one."""
    outer, dot, own = name.rpartition(".")
    return outer + dot + SHARED.get(own, own)


def within(name: str) -> str:
    """The name of a weight within its layer, such as `wq`; "" if it is in none."""
    stack, _, own = name.rpartition(".")
    return own if is_stack(stack) else ""


def named(tree: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """The leaves of a tree of dictionaries by names such as `layers.wq`."""
    found = {}
    for key, one in tree.items():
        found |= named(one, f"{path}{key}.") if isinstance(one, dict) else {f"{path}{key}": one}
    return found


def nested(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """The tree that `named` took apart."""
    found: dict[str, Any] = {}
    for name, one in leaves.items():
        *outer, key = name.split(".")
        functools.reduce(lambda tree, part: tree.setdefault(part, {}), outer, found)[key] = one
    return found


def _matching(patterns: tuple[str, ...], names: list[str]) -> set[str]:
    found = set()
    for pattern in patterns:
        matches = {name for name in names if fnmatchcase(name, pattern)}
        if not matches:
            raise ValueError(f"{pattern!r} names no weight: use some of {', '.join(names)}")
        found |= matches
    return found


def _has_products(name: str, shape: xf.ShapeDtypeStruct) -> bool:
    """Whether a weight is a matrix, or several, and only multiplied with."""
    router = within(name) in ("router", "shared_gate")
    return router or _is_of_experts(name) or _is_matrix(name, shape)


def _is_matrix(name: str, shape: xf.ShapeDtypeStruct) -> bool:
    """Whether a weight is used by `linear` and nothing else."""
    return name == "head" or (within(name).startswith("w") and len(shape.shape) == 3)


def _is_of_experts(name: str) -> bool:
    """Whether it has the matrices of experts, which `experts` multiplies with."""
    return within(name).startswith("e_")


def forms(config: Config, tune: Tune) -> Params:
    """In which form each weight of a base is kept: a tree like the parameters, see `quantised`."""
    shapes, role = named(model.shapes(config)), named(roles(config, tune))
    matrices = {
        n: a.shape
        for n, a in shapes.items()
        if role[n] != FULL and (_is_matrix(n, a) or _is_of_experts(n))
    }
    if tune.base is None:
        matrices = {}
    if tune.base == "nf4" and (odd := [n for n, a in matrices.items() if a[-1] % quantised.BLOCK]):
        raise ValueError(
            f"base is nf4, whose blocks have {quantised.BLOCK} inputs, but "
            f"{', '.join(f'{name} has {shapes[name].shape[-1]}' for name in odd)}: leave it out"
        )
    return nested({name: tune.base if name in matrices else "plain" for name in shapes})


def learned_part(config: Config, tune: Tune) -> float:
    """The fraction of the weights in a token's products that are trained directly."""
    shapes, role = named(model.shapes(config)), named(roles(config, tune))
    head, e = "embed" if config.tied else "head", config.experts
    sizes = {n: math.prod(a.shape) for n, a in shapes.items() if n == head or _has_products(n, a)}
    if e is not None:
        sizes |= {n: size * e.active // e.count for n, size in sizes.items() if _is_of_experts(n)}
    return sum(size for n, size in sizes.items() if role[n] == FULL) / sum(sizes.values())


def trained(
    tree: Params, config: Config, tune: Tune, adapt: Callable[[str, Any], Adapter]
) -> Params:
    """The trained part of a tree like the parameters: `adapt` makes adapters from names, leaves."""

    def made(name: str, leaf: Any) -> Adapter:
        adapter = adapt(name, leaf)
        return adapter._replace(down=None) if sharer(name) != name else adapter

    return _kept(tree, roles(config, tune), {FULL: _unchanged, LORA: made})


def frozen(tree: Params, config: Config, tune: Tune, *, whole: bool = False) -> Params | None:
    """The frozen part of a tree like the parameters; if `whole`, the trained part as well.

    None if that is empty.
    """
    kept = (FROZEN, LORA, FULL) if whole else (FROZEN, LORA)
    return _kept(tree, roles(config, tune), dict.fromkeys(kept, _unchanged)) or None


def _kept(tree: Any, role: Params, made: dict[str, Callable[[str, Any], Any]]) -> Params:
    """The leaves whose role is in `made`; mappings left empty are dropped."""
    leaves = named(tree)
    kept = {name: made[one](name, leaves[name]) for name, one in named(role).items() if one in made}
    return nested(kept)


def _unchanged(_: str, leaf: Any) -> Any:
    return leaf


def adapters(config: Config, tune: Tune, key: Int[Tensor, "2"]) -> Callable[[str, Tensor], Adapter]:
    """A function that makes a weight's initial adapter, which adds nothing to it yet."""
    count = xf.tree.leaves(roles(config, tune)).count(LORA)
    keys = iter(xf.random.split(key, max(count, 1)))

    def adapt(name: str, weight: Tensor) -> Adapter:
        *lead, out, into = weight.shape
        bound, rank = into**-0.5, tune.rank  # as `torch.nn.Linear` draws its weights
        down = xf.random.uniform(next(keys), (*lead, rank, into), torch.float32, -bound, bound)
        return Adapter(down, torch.zeros((*lead, out, rank), dtype=torch.float32))

    return adapt


def abstract(tune: Tune) -> Callable[[str, xf.ShapeDtypeStruct], Adapter]:
    """A function from the shape of a weight to those of its adapter, sharded like the weight."""

    def adapt(name: str, weight: xf.ShapeDtypeStruct) -> Adapter:
        (*lead, out, into), rank = weight.shape, tune.rank
        down: Any = xf.ShapeDtypeStruct((*lead, rank, into), weight.dtype)
        up: Any = xf.ShapeDtypeStruct((*lead, out, rank), weight.dtype)
        if (where := weight.sharding) is None:
            return Adapter(down, up)
        assert isinstance(where, NamedSharding)
        *first, rows, columns = (*where.spec, *(None,) * len(weight.shape))[: len(weight.shape)]
        lies = P(*first, None, columns), P(*first, rows, None)
        down, up = (
            xf.ShapeDtypeStruct(a.shape, a.dtype, NamedSharding(where.mesh, spec))
            for a, spec in zip((down, up), lies, strict=True)
        )
        return Adapter(down, up)

    return adapt


def join(trained: Params, frozen: Params | None, tune: Tune) -> Params:
    """The parameters for the model, with `Adapted` weights where there are adapters."""
    return trained if frozen is None else _joined(trained, frozen, tune.scale)


def _joined(trained: Any, frozen: Any, scale: float) -> Any:
    if isinstance(trained, Adapter):
        return Adapted(frozen, trained.down, trained.up * scale)
    if not isinstance(trained, dict):
        return trained
    found = dict(frozen)
    for key, one in trained.items():
        found[key] = _joined(one, frozen[key], scale) if key in frozen else one
    return found


def merged(params: Params, dtype: torch.dtype) -> Params:
    """Plain weights in place of `Adapted` ones, and of quantised ones, in `dtype`."""
    every = named(params)

    def merge(name: str, leaf: Any) -> Tensor:
        if quantised.is_quantised(leaf):
            return leaf.plain().to(dtype)
        if not isinstance(leaf, Adapted):
            return leaf
        down = every[sharer(name)].down
        base = leaf.base.float() if isinstance(leaf.base, Tensor) else leaf.base.plain()
        return (base + leaf.up.float() @ down.float()).to(leaf.up.dtype)

    return nested({name: merge(name, leaf) for name, leaf in every.items()})
