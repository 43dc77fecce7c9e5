"""Tensors without memory, and tracers of torch's around a call, are refused by name."""

# Private classes of torch's are the subject here.
# pyright: reportPrivateImportUsage=false, reportUnknownMemberType=false, reportAttributeAccessIssue=false
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.logging_tensor import LoggingTensor
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.flop_counter import FlopCounterMode

import xfunc as xf
from tests.support.functions import vector
from xfunc.errors import UnsupportedOpError

pytestmark = [
    pytest.mark.usefixtures("alive_afterwards"),
    pytest.mark.filterwarnings("ignore:.*(beta|prototype|deprecated and will be):UserWarning"),
]


class _Wrapper(torch.Tensor):
    @staticmethod
    def __new__(cls, like: torch.Tensor) -> Any:
        make: Any = torch.Tensor._make_wrapper_subclass
        return make(cls, like.shape, dtype=like.dtype)

    @classmethod
    def __torch_dispatch__(cls, func: Any, *_: object, **__: object) -> object:
        raise NotImplementedError(func)


class _Dispatching(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_dispatch__(func, types, args, kwargs)


def _released() -> torch.Tensor:
    x = vector()
    x.untyped_storage().resize_(0)
    return x


def _functional() -> torch.Tensor:
    with FunctionalTensorMode():
        return FunctionalTensor.to_functional(vector())


def _escaped(transform: Callable[..., Any]) -> torch.Tensor:
    kept: list[torch.Tensor] = []
    transform(lambda x: (kept.append(x), x.sum())[1])(torch.stack([vector(), vector()]))
    return kept[0]


def _fake(x: torch.Tensor) -> torch.Tensor:
    return FakeTensorMode().from_tensor(x)


def _quantized() -> torch.Tensor:
    return torch.quantize_per_tensor(vector(), 0.1, 0, torch.qint8)


def _square(layout: str) -> torch.Tensor:
    block = ((2, 2),) if "b" in layout else ()
    return getattr(torch.ones(4, 4), f"to_sparse{layout}")(*block)


def _nested(layout: torch.layout) -> torch.Tensor:
    return torch.nested.nested_tensor([vector(), vector()], layout=layout)


REFUSED: dict[str, tuple[Callable[[], torch.Tensor], str]] = {
    "FakeTensor": (lambda: _fake(vector()), "FakeTensor, which has no data"),
    "FakeTensor, empty": (lambda: _fake(torch.ones(0)), "FakeTensor, which has no data"),
    "FakeTensor of the device": (
        lambda: _fake(xf.device_put(vector())),
        "FakeTensor|tensor of the CPU",
    ),
    "FakeTensor, watched": (lambda: _fake(vector().requires_grad_()), "FakeTensor"),
    "FunctionalTensor": (_functional, "FunctionalTensor, which has no data"),
    "functional": (lambda: torch._to_functional_tensor(vector()), "tracer of torch's"),
    "TwoTensor": (lambda: TwoTensor(vector(), vector()), "TwoTensor, which has no memory"),
    "LoggingTensor": (lambda: LoggingTensor(vector()), "LoggingTensor, which has no memory"),
    "MaskedTensor": (lambda: torch.masked.masked_tensor(vector(), vector() > 1), "MaskedTensor"),
    "own wrapper": (lambda: _Wrapper(vector()), "_Wrapper, which has no memory of its own"),
    "released": (_released, "its storage has been released"),
    "of vmap": (lambda: _escaped(torch.func.vmap), "transform of torch.func that has ended"),
    "of functionalize": (lambda: _escaped(torch.func.functionalize), "that has ended"),
    "meta": (lambda: vector().to("meta"), "meta device"),
    "coo": (lambda: _square(""), "sparse_coo"),
    "csr": (lambda: _square("_csr"), "sparse_csr"),
    "csc": (lambda: _square("_csc"), "sparse_csc"),
    "bsr": (lambda: _square("_bsr"), "sparse_bsr"),
    "bsc": (lambda: _square("_bsc"), "sparse_bsc"),
    "quantized": (_quantized, "qint8"),
    "mkldnn": (lambda: vector().to_mkldnn(), "_mkldnn"),
    "nested": (lambda: _nested(torch.strided), "nested tensor"),
    "jagged": (lambda: _nested(torch.jagged), "jagged"),
    "UninitializedParameter": (nn.parameter.UninitializedParameter, "not initialised yet"),
    "UninitializedBuffer": (nn.parameter.UninitializedBuffer, "not initialised yet"),
}

TAKEN: dict[str, Callable[[], torch.Tensor]] = {
    "Parameter": lambda: nn.Parameter(vector()),
    "Buffer": lambda: nn.Buffer(vector()),
    "subclass that dispatches": lambda: vector().as_subclass(_Dispatching),
    "negated": lambda: torch._neg_view(vector()),
    "efficient zero": lambda: torch._efficientzerotensor(3),
    "of a gradient that has ended": lambda: _escaped(torch.func.grad),
    "empty": lambda: torch.ones(0, 3),
}


def _double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def _closed_over(x: torch.Tensor) -> Any:
    return xf.jit(lambda y: (y, x * 2)[1])(vector())


USES: dict[str, Callable[[torch.Tensor], Any]] = {
    "jit": lambda x: xf.jit(_double)(x),
    "closure": _closed_over,
    "grad": lambda x: xf.grad(lambda x: (x * x).sum())(x),
    "vmap": lambda x: xf.vmap(_double)(x),
    "device_put": lambda x: xf.device_put(x),
    "scan": lambda x: xf.scan(lambda c, x: (c, x * 2), torch.zeros(()), x)[1],
    "inside": lambda x: xf.jit(lambda y: (y, xf.jit(_double)(x))[1])(vector()),
    "export": lambda x: _loaded()(x),
}


def _loaded() -> Callable[..., Any]:
    return xf.export.deserialize(xf.export.serialize(xf.jit(_double).lower(vector())))


@pytest.mark.sample(5, seed=0)
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("kind", REFUSED)
def test_transforms_refuse_tensors_without_memory(kind: str, use: str) -> None:
    make, says = REFUSED[kind]
    x = make()
    label = (
        "argument 0"
        if use == "export"
        else r"(?:a captured tensor|a tensor that a program takes|x|traced values)\b"
    )
    with pytest.raises(UnsupportedOpError, match=rf"(?s)^{label}.*(?:{says}).*Hint: "):
        USES[use](x)


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize("use", [u for u in USES if u != "export"])
@pytest.mark.parametrize("kind", TAKEN)
def test_transforms_take_tensors_with_memory(kind: str, use: str) -> None:
    x = TAKEN[kind]()
    found = USES[use](x)
    expected = x if use == "device_put" else 2 * x
    torch.testing.assert_close(
        found.detach().cpu(), (expected + 0).as_subclass(torch.Tensor).detach()
    )


@pytest.fixture
def mesh() -> Iterator[Any]:
    from torch.distributed.tensor import init_device_mesh

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.parametrize("use", USES)
def test_transforms_refuse_dtensor(use: str, mesh: Any) -> None:
    from torch.distributed.tensor import Replicate, distribute_tensor

    x = distribute_tensor(vector(), mesh, [Replicate()])
    with pytest.raises(
        UnsupportedOpError, match=r"DTensor, which has no memory.*\n(.*\n)?Hint: .*to_local"
    ):
        USES[use](x)


def test_jit_fake_tensor_error_names_path_and_line() -> None:
    x = _fake(vector())
    with pytest.raises(UnsupportedOpError, match=r"^params\['w'\] \(float32\[3\]\) ") as caught:
        xf.jit(lambda params: params["w"] * 2)({"w": x})  # here
    assert "# here" in str(caught.value)


def test_jit_captured_storage_released_after_trace() -> None:
    held = vector()
    f = xf.jit(lambda x: x + held)
    f(vector())
    held.untyped_storage().resize_(0)
    with pytest.raises(UnsupportedOpError, match="its storage has been released"):
        f(vector())
    with pytest.raises(UnsupportedOpError, match="its storage has been released"):
        f(held)


class _Calling(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _jitted(x) + 1


_jitted = xf.jit(_double)
_ranged = xf.jit(_double, dynamic_shapes=({0: xf.Dim("n", max=8)},))


def _in(mode: Any, fun: Callable[..., Any]) -> Any:
    with mode:
        return fun(vector())


TRACERS: dict[str, tuple[Callable[[Callable[..., Any]], Any], str]] = {
    "torch.jit.trace": (lambda f: torch.jit.trace(f, vector()), "torch.jit.trace"),
    "make_fx": (lambda f: make_fx(f)(vector()), "make_fx"),
    "make_fx, fake": (lambda f: make_fx(f, tracing_mode="fake")(vector()), "make_fx"),
    "make_fx, symbolic": (lambda f: make_fx(f, tracing_mode="symbolic")(vector()), "make_fx"),
    "FakeTensorMode": (lambda f: _in(FakeTensorMode(), f), "FakeTensorMode"),
    "FunctionalTensorMode": (lambda f: _in(FunctionalTensorMode(), f), "FunctionalTensorMode"),
    "functionalize": (lambda f: torch.func.functionalize(f)(vector()), "functionalize"),
}
CALLS: dict[str, Callable[[torch.Tensor], Any]] = {
    "jit": lambda x: _jitted(x),
    "a range of shapes": lambda x: _ranged(x),
    "vmap": lambda x: xf.vmap(_double)(x),
    "scan": lambda x: xf.scan(lambda c, x: (c, x * 2), torch.zeros(()), x)[1],
    "lower": lambda x: (xf.clear_caches(), xf.jit(_double).lower(x), x)[2],
    "device_put": lambda x: xf.device_put(x),
}


@pytest.mark.sample(4, seed=0)
@pytest.mark.parametrize("is_cached", [False, True])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.filterwarnings("ignore:.torch.jit.trace:DeprecationWarning")  # of torch 2.13
@pytest.mark.filterwarnings("ignore:.torch.jit.trace:FutureWarning")  # of torch 2.14
@pytest.mark.parametrize("tracer", TRACERS)
def test_transforms_inside_torch_tracer_are_refused(
    tracer: str, call: str, is_cached: bool
) -> None:
    record, says = TRACERS[tracer]
    x = xf.device_put(vector())
    if is_cached:
        CALLS[call](vector())
        CALLS[call](x)
        CALLS[call](x)
    else:
        xf.clear_caches()
    with pytest.raises(UnsupportedOpError, match=rf"was called inside of .*{says}(.|\n)*Hint: "):
        record(CALLS[call])
    with pytest.raises(UnsupportedOpError, match=rf"was called inside of .*{says}(.|\n)*Hint: "):
        record(lambda y: CALLS[call](x))
    assert _jitted(vector()).tolist() == [2 * v for v in vector().tolist()]
    assert xf.vmap(_jitted)(vector()).tolist() == [2 * v for v in vector().tolist()]
    assert _ranged(vector()).tolist() == [2 * v for v in vector().tolist()]


def test_jit_inside_torch_export_is_refused() -> None:
    with pytest.raises(UnsupportedOpError, match=r"inside of (make_fx|Fake)(.|\n)*test_dataless"):
        torch.export.export(_Calling(), (vector(),), strict=False)


def test_jit_inside_flop_counter_mode() -> None:
    with FlopCounterMode(display=False):
        assert _jitted(vector()).tolist() == [2 * v for v in vector().tolist()]


def _pullback() -> Callable[[torch.Tensor], object]:
    pull = xf.vjp(torch.sin, vector())[1]
    return lambda ct: pull(ct)[0]


DERIVATIVES = {
    "pullback": _pullback,
    "linearized": lambda: xf.linearize(torch.sin, vector())[1],
    "transpose": lambda: xf.linear_transpose(lambda x: x * 2, vector()),
}


@pytest.mark.parametrize("kind", DERIVATIVES)
def test_derivative_at_a_point_inside_make_fx_is_refused(kind: str) -> None:
    f = DERIVATIVES[kind]()
    with pytest.raises(UnsupportedOpError, match="called inside of make_fx"):
        make_fx(f)(vector())
    with pytest.raises(UnsupportedOpError, match="FakeTensor"):
        _in(FakeTensorMode(), f)
