"""The transforms: what xfunc computes, and what eager torch computes to compare it with."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch

import xfunc as xf

from .cases import Case, arrays, as_real

Tensor = torch.Tensor


@dataclasses.dataclass(frozen=True)
class Transform:
    """One way to run a case.

    Attributes:
        ours: from the case and the `inputs`, inside a program.
        theirs: likewise, in eager torch.
        differentiates: whether it needs derivatives.
        otherwise: another way to `theirs`, which need not agree: torch's rules for both modes take
            a function of triangular matrices, for one, for that of others in different ways.
    """

    ours: Callable[[Case, dict[str, Any]], Any]
    theirs: Callable[[Case, dict[str, Any]], Any]
    differentiates: bool = True
    otherwise: Callable[[Case, dict[str, Any]], Any] | None = None


def forward_inputs(case: Case) -> dict[str, Any]:
    """What the transforms without derivatives work on: an example, and a batch of two."""
    pairs = zip(case.tensors, case.other(), strict=True)
    return {"tensors": case.tensors, "batch": [torch.stack(p) for p in pairs]}


def inputs(case: Case) -> dict[str, Any]:
    """What all transforms work on: also tangents, and weights of the results."""
    found = forward_inputs(case)
    reals = case.reals(case.tensors)
    outs = case.smooth(case.tensors, reals)
    if not reals or not outs:
        raise TypeError("there is nothing to differentiate")
    found["reals"] = reals
    found["batch_reals"] = [as_real(found["batch"][k]) for k in case.watched]
    found["tangents"] = [_weights(x, 0.3) for x in reals]
    found["weights"] = [_weights(o, 0.0) for o in outs]
    return found


def _examples(given: dict[str, Any]) -> list[list[Tensor]]:
    return [[t[k].clone() for t in given["batch"]] for k in (0, 1)]


def _weights(like: Tensor, start: float) -> Tensor:
    along = torch.arange(like.numel(), dtype=torch.float64)
    # The same numbers in all dtypes, as `exact` is computed in another one.
    return torch.cos(along + start).bfloat16().reshape(like.shape).to(like.dtype)


def _dot(xs: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    terms = [(x * w).sum() for x, w in zip(xs, weights, strict=True)]
    return sum(terms[1:], start=terms[0])


def _loss(case: Case, given: dict[str, Any], tensors: Sequence[Tensor]) -> Callable[..., Tensor]:
    return lambda *reals: _dot(case.smooth(tensors, reals), given["weights"])


# -- xfunc ----------------------------------------------------------------------------------------


def _all(xs: Sequence[Any]) -> tuple[int, ...]:
    return tuple(range(len(xs)))


def _gradient(case: Case, given: dict[str, Any], tensors: Sequence[Tensor]) -> Callable[..., Any]:
    return xf.grad(_loss(case, given, tensors), argnums=_all(case.watched))


def _of_batch(f: Callable[..., Any], given: dict[str, Any]) -> Any:
    return xf.vmap(f)(given["batch"], given["batch_reals"])


def _batched_loss(case: Case, given: dict[str, Any]) -> Callable[..., Tensor]:
    def loss(*reals: Tensor) -> Tensor:
        each = xf.vmap(lambda tensors, xs: _loss(case, given, tensors)(*xs))
        return each(given["batch"], list(reals)).sum()

    return loss


def _pushed_gradient(case: Case, given: dict[str, Any]) -> Any:
    gradient = _gradient(case, given, given["tensors"])
    return xf.jvp(gradient, tuple(given["reals"]), tuple(given["tangents"]))[1]


def _second_gradient(case: Case, given: dict[str, Any]) -> Any:
    gradient = _gradient(case, given, given["tensors"])
    second = xf.grad(lambda *xs: _dot(gradient(*xs), given["tangents"]), argnums=_all(case.watched))
    return second(*given["reals"])


def _pushed(case: Case, given: dict[str, Any]) -> Any:
    f = lambda *xs: case.smooth(given["tensors"], xs)  # noqa: E731
    return xf.jvp(f, tuple(given["reals"]), tuple(given["tangents"]))[1]


def _slope(case: Case, given: dict[str, Any]) -> Callable[..., Tensor]:
    loss = _loss(case, given, given["tensors"])
    return lambda *xs: xf.jvp(loss, xs, tuple(given["tangents"]))[1]


def _pushed_twice(case: Case, given: dict[str, Any]) -> Any:
    return xf.jvp(_slope(case, given), tuple(given["reals"]), tuple(given["tangents"]))[1]


def _gradient_of_slope(case: Case, given: dict[str, Any]) -> Any:
    return xf.grad(_slope(case, given), argnums=_all(case.watched))(*given["reals"])


def _pulled(case: Case, given: dict[str, Any]) -> Any:
    _, pull = xf.vjp(lambda *xs: case.smooth(given["tensors"], xs), *given["reals"])
    return pull(tuple(given["weights"]))


def _pulled_batch(case: Case, given: dict[str, Any]) -> Any:
    _, pull = xf.vjp(lambda *xs: case.smooth(given["tensors"], xs), *given["reals"])
    return xf.vmap(pull)(
        tuple(torch.stack([w, w.flip(0) if w.ndim else -w]) for w in given["weights"])
    )


# -- eager torch ----------------------------------------------------------------------------------


def _fresh(case: Case, given: dict[str, Any]) -> list[Tensor]:
    return [x.detach().clone().requires_grad_() for x in given["reals"]]


def _grads(
    out: Any, xs: Sequence[Tensor], weights: Any = None, again: bool = False
) -> tuple[Any, ...]:
    outs = [o for o in out if o.requires_grad]
    if not outs:
        return tuple(torch.zeros_like(x) for x in xs)
    if weights is not None:
        weights = [w for o, w in zip(out, weights, strict=True) if o.requires_grad]
    return torch.autograd.grad(
        outs, xs, weights, create_graph=again, allow_unused=True, materialize_grads=True
    )


def _eager_batch(case: Case, given: dict[str, Any]) -> Any:
    outs = [case(*example) for example in _examples(given)]
    if not case.tensors or len(arrays(outs[0])) != len(xf.tree.leaves(outs[0])):
        raise TypeError("vmap returns tensors only")
    return xf.tree.map(lambda *o: torch.stack(o), *outs)


def _eager_pull(case: Case, given: dict[str, Any]) -> tuple[Any, ...]:
    xs = _fresh(case, given)
    return _grads(case.smooth(given["tensors"], xs), xs, given["weights"])


def _eager_pull_batch(case: Case, given: dict[str, Any]) -> tuple[Any, ...]:
    flipped = [w.flip(0) if w.ndim else -w for w in given["weights"]]
    both = [_eager_pull(case, {**given, "weights": w}) for w in (given["weights"], flipped)]
    return tuple(map(torch.stack, zip(*both, strict=True)))


def _eager_batch_of_gradients(case: Case, given: dict[str, Any]) -> tuple[Any, ...]:
    both = []
    for k, tensors in enumerate(_examples(given)):
        reals = [x[k] for x in given["batch_reals"]]
        both.append(_eager_pull(case, {**given, "tensors": tensors, "reals": reals}))
    return tuple(map(torch.stack, zip(*both, strict=True)))


def _eager_second(case: Case, given: dict[str, Any]) -> tuple[Any, ...]:
    xs = _fresh(case, given)
    gradient = _grads(case.smooth(given["tensors"], xs), xs, given["weights"], again=True)
    return _grads(gradient, xs, given["tangents"])


def _eager_curvature(case: Case, given: dict[str, Any]) -> Tensor:
    found = _dot(_eager_second(case, given), given["tangents"])
    return found.to(_loss(case, given, given["tensors"])(*given["reals"]).dtype)


def _eager_push(case: Case, given: dict[str, Any]) -> tuple[Any, ...]:
    """By differentiating the pullback, which is linear in the weights, if torch can."""
    xs = _fresh(case, given)
    weights = [w.clone().requires_grad_() for w in given["weights"]]
    try:
        pulled = _grads(case.smooth(given["tensors"], xs), xs, weights, again=True)
        return _grads(pulled, weights, given["tangents"])
    except RuntimeError:
        return _eager_jvp(case, given)


def _eager_jvp(case: Case, given: dict[str, Any]) -> tuple[Any, ...]:
    f = lambda *xs: case.smooth(given["tensors"], xs)  # noqa: E731
    return torch.func.jvp(f, tuple(given["reals"]), tuple(given["tangents"]))[1]


def _eager_jvp_of_gradient(case: Case, given: dict[str, Any]) -> tuple[Any, ...]:
    gradient = torch.func.grad(_loss(case, given, given["tensors"]), _all(case.watched))
    return torch.func.jvp(gradient, tuple(given["reals"]), tuple(given["tangents"]))[1]


TRANSFORMS: dict[str, Transform] = {
    "jit": Transform(
        lambda case, given: case(*given["tensors"]),
        lambda case, given: case(*[t.clone() for t in given["tensors"]]),
        differentiates=False,
    ),
    "vmap": Transform(
        lambda case, given: xf.vmap(case)(*given["batch"]), _eager_batch, differentiates=False
    ),
    "grad": Transform(
        lambda case, given: _gradient(case, given, given["tensors"])(*given["reals"]), _eager_pull
    ),
    "vmap(grad)": Transform(
        lambda case, given: _of_batch(lambda ts, xs: _gradient(case, given, ts)(*xs), given),
        _eager_batch_of_gradients,
    ),
    "grad(vmap)": Transform(
        lambda case, given: xf.grad(_batched_loss(case, given), argnums=_all(case.watched))(
            *given["batch_reals"]
        ),
        _eager_batch_of_gradients,
    ),
    "jvp": Transform(_pushed, _eager_push, otherwise=_eager_jvp),
    "jvp(grad)": Transform(_pushed_gradient, _eager_second, otherwise=_eager_jvp_of_gradient),
    "grad(grad)": Transform(_second_gradient, _eager_second),
    "jvp(jvp)": Transform(_pushed_twice, _eager_curvature),
    "grad(jvp)": Transform(_gradient_of_slope, _eager_second, otherwise=_eager_jvp_of_gradient),
    "vjp": Transform(_pulled, _eager_pull),
    "vmap(vjp)": Transform(_pulled_batch, _eager_pull_batch),
}
