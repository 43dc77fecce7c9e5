"""Options of torch's functions that are traced values.

torch reads an option that is a tensor, such as the slope of ``F.leaky_relu(x, slope)``; a traced
one has no value to read. The rules here say the same in operations on tensors, and so have a
derivative with respect to the option, too.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from xfunc.rules.operands import HALF, result_type
from xfunc.torchlib.losses import reduced
from xfunc.torchlib.torch_functions import functions

Tensor = torch.Tensor
Option = Any  # marks the parameters of a rule that may be traced numbers
Uncast = Any  # and those that the rule takes as they are, such as indices


@dataclasses.dataclass(frozen=True)
class Rule:
    """What a function does if one of its options is a 0-d tensor.

    Attributes:
        run: does it, with tensors no narrower than float32 unless `rounds`.
        signature: of `run`.
        options: the parameters that may be 0-d tensors, with their positions.
        first: the least of the positions.
        in_place: whether the function changes its first argument.
        rounds: whether torch rounds the options to the dtype of the operands.
    """

    run: Callable[..., Tensor]
    signature: inspect.Signature
    options: Mapping[str, int]
    first: int
    in_place: bool
    rounds: bool

    def applies(self, args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
        """Whether an option is a 0-d tensor."""
        count = len(args)
        if not kwargs and count <= self.first:
            return False  # the common case, fast
        return any(
            _is_scalar(args[place] if place < count else kwargs.get(name))
            for name, place in self.options.items()
        )

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
        """The result; NotImplemented if torch's function is to refuse the arguments.

        Raises:
            RuntimeError: the operands have a dtype that cannot hold the option.
        """
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError:
            return NotImplemented
        given = bound.arguments
        first, target = next(iter(given.items()))
        tensors = [v for k, v in given.items() if isinstance(v, Tensor) and k not in self.options]
        dtype = result_type(tensors)
        wide = torch.float32 if dtype in HALF and not self.rounds else dtype
        for name, value in given.items():
            if not isinstance(value, Tensor) or self._is_uncast(name):
                continue
            if name in self.options:
                if not torch.can_cast(value.dtype, dtype):
                    kind = "complex" if value.is_complex() else "floating point"
                    raise RuntimeError(
                        f"For {dtype} tensors, argument {name} must not be a {kind} number."
                    )
                given[name] = value.to(wide)
            elif value.dtype in HALF:
                given[name] = value.to(wide)
        in_place = self.in_place or given.get("inplace")
        if in_place:
            given[first] = given[first].clone()
        out = self.run(*bound.args, **bound.kwargs)
        if out is NotImplemented:
            return out
        out = out.to(dtype) if out.dtype is wide else out
        return target.copy_(out) if in_place else out

    def _is_uncast(self, name: str) -> bool:
        return self.signature.parameters[name].annotation == "Uncast"


def _is_scalar(option: object) -> bool:
    return isinstance(option, Tensor) and option.ndim == 0


OPTIONS: dict[object, Rule] = {}
"""The rule of each function that has one."""


def _rule(
    *names: str, rounds: bool = False
) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Makes a function the rule of those of torch with these names, wherever torch has them."""

    def put(run: Callable[..., Tensor]) -> Callable[..., Tensor]:
        signature = inspect.signature(run)
        options = {
            name: place if p.kind is p.POSITIONAL_OR_KEYWORD else len(signature.parameters)
            for place, (name, p) in enumerate(signature.parameters.items())
            if p.annotation in ("Option", "Uncast")
        }
        first = min(options.values())
        for name in names:
            rule = Rule(run, signature, options, first, name.endswith("_"), rounds)
            OPTIONS.update(dict.fromkeys(functions(name), rule))
        return run

    return put


# -- sums ---------------------------------------------------------------------------------------


@_rule("add", "add_")
def _add(input: Any, other: Any, *, alpha: Option = 1) -> Tensor:
    return input + other * alpha


@_rule("sub", "sub_", "subtract", "subtract_")
def _sub(input: Any, other: Any, *, alpha: Option = 1) -> Tensor:
    return input - other * alpha


@_rule("rsub")
def _rsub(input: Any, other: Any, *, alpha: Option = 1) -> Tensor:
    return other - input * alpha


@_rule("addcmul", "addcmul_")
def _addcmul(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Option = 1) -> Tensor:
    return torch.addcmul(input, tensor1 * value, tensor2)


@_rule("addcdiv", "addcdiv_")
def _addcdiv(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Option = 1) -> Tensor:
    return torch.addcdiv(input, tensor1 * value, tensor2)


def _with_product(product: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """``beta * input + alpha * product``, where a `beta` of 0 ignores the input, even NaN."""

    def run(
        input: Tensor, left: Tensor, right: Tensor, *, beta: Option = 1, alpha: Option = 1
    ) -> Tensor:
        if isinstance(beta, Tensor):
            input = torch.where(beta == 0, 0, input * beta)
        else:
            input = input * beta if beta else torch.zeros_like(input)
        return input + product(left, right) * alpha

    return run


_rule("addmm", "addmm_")(_with_product(lambda a, b: a.mm(b)))
_rule("addmv", "addmv_")(_with_product(lambda a, b: a.mv(b)))
_rule("addr", "addr_")(_with_product(lambda a, b: a.outer(b)))
_rule("baddbmm", "baddbmm_")(_with_product(lambda a, b: a.bmm(b)))
_rule("addbmm", "addbmm_")(_with_product(lambda a, b: a.bmm(b).sum(0)))


# -- bounds -------------------------------------------------------------------------------------


@_rule("clamp", "clamp_", "clip", "clip_", rounds=True)
def _clamp(input: Tensor, min: Uncast = None, max: Uncast = None) -> Tensor:
    traced, number = (min, max) if isinstance(min, Tensor) else (max, min)
    if number is None or isinstance(number, Tensor):
        return NotImplemented  # torch has a clamp for tensors.
    if not input.is_floating_point() and (isinstance(number, float) or traced.is_floating_point()):
        return NotImplemented  # The result has another dtype.
    bounds = [
        b.to(input.dtype) if isinstance(b, Tensor) else input.new_full((), b) for b in (min, max)
    ]
    return torch.clamp(input, *bounds)


@_rule("hardtanh", "hardtanh_", rounds=True)
def _hardtanh(
    input: Tensor, min_val: Option = -1.0, max_val: Option = 1.0, inplace: bool = False
) -> Tensor:
    return torch.where(input <= min_val, min_val, torch.where(input >= max_val, max_val, input))


@_rule("threshold", "threshold_", "_threshold")
def _threshold(input: Tensor, threshold: Option, value: Option, inplace: bool = False) -> Tensor:
    return torch.where(input <= threshold, value, input)


@_rule("hardshrink", rounds=True)
def _hardshrink(input: Tensor, lambd: Option = 0.5) -> Tensor:
    return torch.where((input >= -lambd) & (input <= lambd), 0, input)


@_rule("softshrink")
def _softshrink(input: Tensor, lambd: Option = 0.5) -> Tensor:
    below = torch.where(input < -lambd, input + lambd, input * 0)
    return torch.where(input > lambd, input - lambd, below)


@_rule("nan_to_num", "nan_to_num_", rounds=True)
def _nan_to_num(
    input: Tensor, nan: Option = None, posinf: Option = None, neginf: Option = None
) -> Tensor:
    for is_one, value in (
        (input.isnan(), nan),
        (input == torch.inf, posinf),
        (input == -torch.inf, neginf),
    ):
        if value is not None:
            input = torch.where(is_one, value, input)
    return torch.nan_to_num(input)


@_rule("logit", "logit_")
def _logit(input: Tensor, eps: Option = None) -> Tensor:
    return torch.logit(torch.where(input < eps, eps, torch.where(input > 1 - eps, 1 - eps, input)))


@_rule("isclose", rounds=True)
def _isclose(
    input: Tensor,
    other: Tensor,
    rtol: Option = 1e-5,
    atol: Option = 1e-8,
    equal_nan: bool = False,
) -> Tensor:
    apart = (input - other).abs()
    near = apart.isfinite() & (apart <= atol + (rtol * other).abs())
    return near | torch.isclose(input, other, 0.0, 0.0, equal_nan)


@_rule("pad", rounds=True)
def _pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: Option = None) -> Tensor:
    if mode != "constant":
        return NotImplemented
    is_input = F.pad(torch.ones_like(input, dtype=torch.bool), pad)
    return torch.where(is_input, F.pad(input, pad), value)


# -- indices ------------------------------------------------------------------------------------


@_rule("roll", rounds=True)
def _roll(input: Tensor, shifts: Uncast, dims: int | None = None) -> Tensor:
    if dims is None:
        return _roll(input.flatten(), shifts, 0).view(input.shape)
    if not isinstance(dims, int):
        return NotImplemented
    n = input.shape[dims]
    return input.index_select(dims, (torch.arange(n) - shifts) % max(n, 1))


@_rule("select", rounds=True)
def _select(input: Tensor, dim: int, index: Uncast) -> Tensor:
    return input.movedim(dim, 0)[index]


@_rule("select_scatter", rounds=True)
def _select_scatter(input: Tensor, src: Tensor, dim: int, index: Uncast) -> Tensor:
    n = input.shape[dim]
    is_there = torch.arange(n) == torch.where(index < 0, index + n, index)
    return torch.where(is_there, src.unsqueeze(-1), input.movedim(dim, -1)).movedim(-1, dim)


def _offsets(x: Tensor) -> Tensor:
    """How far each element of a matrix is above the diagonal."""
    return torch.arange(x.shape[-1]) - torch.arange(x.shape[-2]).unsqueeze(-1)


@_rule("tril", "tril_", rounds=True)
def _tril(input: Tensor, diagonal: Uncast = 0) -> Tensor:
    return torch.where(_offsets(input) <= diagonal, input, 0)


@_rule("triu", "triu_", rounds=True)
def _triu(input: Tensor, diagonal: Uncast = 0) -> Tensor:
    return torch.where(_offsets(input) >= diagonal, input, 0)


# -- activations --------------------------------------------------------------------------------


@_rule("leaky_relu", "leaky_relu_")
def _leaky_relu(input: Tensor, negative_slope: Option = 0.01, inplace: bool = False) -> Tensor:
    return torch.where(input > 0, input, input * negative_slope)


@_rule("elu", "elu_")
def _elu(input: Tensor, alpha: Option = 1.0, inplace: bool = False) -> Tensor:
    below = torch.where(input > 0, 0, input)
    return torch.where(input > 0, input, alpha * below.expm1())


@_rule("celu", "celu_")
def _celu(input: Tensor, alpha: Option = 1.0, inplace: bool = False) -> Tensor:
    below = torch.where(input > 0, 0, input)
    return torch.where(input > 0, input, alpha * (below / alpha).expm1())


@_rule("softplus")
def _softplus(input: Tensor, beta: Option = 1.0, threshold: Option = 20.0) -> Tensor:
    scaled = input * beta
    is_linear = scaled > threshold
    return torch.where(is_linear, input, torch.where(is_linear, 0, scaled).exp().log1p() / beta)


@_rule("dropout")
def _dropout(
    input: Tensor, p: Option = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    if not training:
        return input
    is_kept = torch.bernoulli((1 - p).expand(input.shape)) > 0
    return torch.where(is_kept, input / torch.where(p < 1, 1 - p, 1), 0)


# -- losses -------------------------------------------------------------------------------------


def _reduced(loss: Tensor, reduction: str, *old: object) -> Tensor:
    """The reduced loss; torch itself refuses other reductions, and reads its old options."""
    if reduction not in ("none", "mean", "sum") or any(o is not None for o in old):
        return NotImplemented
    return reduced(loss, reduction)


@_rule("huber_loss")
def _huber_loss(
    input: Tensor,
    target: Tensor,
    reduction: str = "mean",
    delta: Option = 1.0,
    weight: Tensor | None = None,
) -> Tensor:
    if weight is not None:
        return NotImplemented
    apart = (input - target).abs()
    near = 0.5 * apart.square()
    return _reduced(torch.where(apart <= delta, near, delta * (apart - 0.5 * delta)), reduction)


@_rule("smooth_l1_loss")
def _smooth_l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: object = None,
    reduce: object = None,
    reduction: str = "mean",
    beta: Option = 1.0,
) -> Tensor:
    apart = (input - target).abs()
    is_near = apart < beta
    near = torch.where(is_near, apart, 0).square() / torch.where(beta > 0, beta, 1)
    return _reduced(
        torch.where(is_near, 0.5 * near, apart - 0.5 * beta), reduction, size_average, reduce
    )


@_rule("cross_entropy")
def _cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: Option = 0.0,
) -> Tensor:
    plain, smooth = (
        F.cross_entropy(
            input, target, weight, size_average, ignore_index, reduce, reduction, amount
        )
        for amount in (0.0, 1.0)
    )
    return plain * (1 - label_smoothing) + smooth * label_smoothing


@_rule("margin_ranking_loss")
def _margin_ranking_loss(
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: Option = 0.0,
    size_average: object = None,
    reduce: object = None,
    reduction: str = "mean",
) -> Tensor:
    return _reduced(
        (margin - target * (input1 - input2)).clamp(min=0), reduction, size_average, reduce
    )


@_rule("hinge_embedding_loss")
def _hinge_embedding_loss(
    input: Tensor,
    target: Tensor,
    margin: Option = 1.0,
    size_average: object = None,
    reduce: object = None,
    reduction: str = "mean",
) -> Tensor:
    apart = torch.where(target == 1, 0, (margin - input).clamp(min=0))
    return _reduced(apart + torch.where(target == -1, 0, input), reduction, size_average, reduce)
