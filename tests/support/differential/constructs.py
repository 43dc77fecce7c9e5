"""The constructs of the programs, by name. Their order is part of what a number means."""

from __future__ import annotations

from collections.abc import Callable

from . import control_flow, transforms
from .parts import Inner
from .writer import Writer

CONSTRUCTS: dict[str, Callable[[Writer, Inner], None]] = {
    f.__name__: f
    for f in (
        control_flow.scan,
        control_flow.scan_reverse,
        control_flow.while_loop,
        control_flow.fori_loop,
        control_flow.fori_dynamic,
        control_flow.map_,
        control_flow.map_batched,
        control_flow.associative_scan,
        control_flow.cond,
        control_flow.switch,
        transforms.vmap,
        transforms.grad,
        transforms.value_and_grad,
        transforms.jvp,
        transforms.vjp,
        transforms.linearize,
        transforms.jacfwd,
        transforms.jacrev,
        transforms.hessian,
        transforms.checkpoint,
        transforms.jit,
        transforms.custom_vjp,
        transforms.custom_jvp,
    )
}
