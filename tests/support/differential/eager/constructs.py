"""Transforms and control flow in the programs, by name."""

from __future__ import annotations

from collections.abc import Callable

from .control_flow import (
    associative_scan,
    cond,
    fori_loop,
    map_,
    scan,
    scan_reverse,
    switch,
    while_loop,
)
from .parts import Inner
from .transforms import (
    checkpoint,
    custom_jvp,
    custom_vjp,
    grad,
    hessian,
    jacfwd,
    jacrev,
    jit,
    jvp,
    linearize,
    value_and_grad,
    vjp,
    vmap,
)
from .writer import Writer

CONSTRUCTS: dict[str, Callable[[Writer, Inner], None]] = {
    f.__name__: f
    for f in (
        jit, checkpoint, vmap, grad, value_and_grad, jvp, vjp, linearize, jacfwd, jacrev, hessian,
        scan, scan_reverse, fori_loop, while_loop, map_, associative_scan, cond, switch,
        custom_vjp, custom_jvp,
    )
}  # fmt: skip
