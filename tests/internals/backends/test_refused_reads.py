"""A refused read of a traced value harms nothing: neither the next trace, nor lazy tensors."""

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch

import xfunc as xf
from xfunc.backends.torch_xla import runtime
from xfunc.backends.torch_xla.runtime import device
from xfunc.errors import ConcretizationError, UnsupportedOpError

pytestmark = pytest.mark.torch_xla
Tensor = torch.Tensor
aten = torch.ops.aten

# Arguments that torch converts to numbers in C++, and operations that compute on the host.
READS: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda x: x.sum().item(),
    "_local_scalar_dense": lambda x: aten._local_scalar_dense(x.sum()),
    "is_nonzero": lambda x: aten.is_nonzero(x.sum()),
    "clamp": lambda x: aten.clamp(x, x.sum()),
    "addcmul": lambda x: aten.addcmul(x, x, x, value=x.sum()),
    "to": lambda x: x.to("cpu"),
    "_to_cpu": lambda x: aten._to_cpu([x]),
    "_to_copy": lambda x: aten._to_copy(x, device="cpu"),
    "copy_": lambda x: aten.copy_(torch.zeros(3, device="cpu"), x),
    "out": lambda x: torch.add(x, x, out=torch.zeros(3, device="cpu")),
    "equal": lambda x: aten.equal(x, x + 0),
    "unique": lambda x: aten._unique2(x),
    "bincount": lambda x: aten.bincount(x.int()),
    "nonzero": lambda x: aten.nonzero(x),
    "masked_select": lambda x: aten.masked_select(x, x > 0),
}


def summed(f: Callable[[Tensor], Any]) -> Callable[[Tensor], Tensor]:
    def g(x: Tensor) -> Tensor:
        f(x * x)
        return x.sum()

    return g


TRANSFORMS: dict[str, Callable[[Any, Tensor], Any]] = {
    "jit": lambda f, x: xf.jit(f)(x),
    "jvp": lambda f, x: xf.jvp(f, (x,), (x,)),
    "linearize": lambda f, x: xf.linearize(f, x),
    "jvp of jvp": lambda f, x: xf.jvp(lambda x: xf.jvp(f, (x,), (x,)), (x,), (x,)),
    "grad": lambda f, x: xf.grad(summed(f))(x),
    "jit of grad": lambda f, x: xf.jit(xf.grad(summed(f)))(x),
    "vmap": lambda f, x: xf.vmap(f)(torch.stack([x, x])),
    "hessian": lambda f, x: xf.hessian(summed(f))(x),
    "scan": lambda f, x: xf.scan(lambda c, _: (c, f(c)), x, length=2),
    "checkpoint": lambda f, x: xf.checkpoint(f)(x),
}


@pytest.mark.slow
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_refused_reads_leave_lazy_tensors_intact(transform: str) -> None:
    errors: dict[str, BaseException] = {}  # whose tracebacks hold what they were raised about
    for name, read in READS.items():
        try:
            TRANSFORMS[transform](read, torch.ones(3))
        except Exception as error:
            errors[name] = error
        lazy = torch.full((3,), float(len(errors)), device=device()) + 1
        runtime.xla()._xla_sync_live_tensors(str(device()), [], True)
        assert lazy.tolist() == [len(errors) + 1] * 3, name
    assert list(errors) == list(READS)
    named = (ConcretizationError, UnsupportedOpError)
    assert not {n: e for n, e in errors.items() if not isinstance(e, named)}
    zero = torch.zeros(3, device=device())
    assert xf.jit(lambda x: x + len(transform))(zero).tolist() == [len(transform)] * 3


def test_settle_failure_leaves_other_lazy_tensors_intact() -> None:
    """torch_xla takes the computation from a tensor before it finds out that it may not run it."""
    broken, lazy = (torch.full((3,), v, device=device()) + 1 for v in (1.0, 2.0))
    with (
        runtime.switched("allow_execution", False),
        pytest.raises(RuntimeError, match="Unexpected execution"),
    ):
        runtime.materialize([broken])
    for k in range(2):
        assert xf.jit(lambda x, k=k: x * 2 + k)(lazy).tolist() == [6 + k] * 3
        assert (lazy + 1).tolist() == [4] * 3
    with pytest.raises(RuntimeError, match=r"tensor_data|HasValue"):
        broken.cpu()
    del broken
    gc.collect()
