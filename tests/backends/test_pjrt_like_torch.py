"""Results of JAX's runtime beside plain tensors: torch does the same with both."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import xfunc as xf

pytestmark = pytest.mark.usefixtures("pjrt")

made = xf.jit(lambda x: x.clone())
GIVEN = {
    "float": torch.tensor([[2.0, 1.0], [-1.0, 3.0]]),
    "int": torch.tensor([[1, 0, 2], [1, 1, 0]]),
    "bool": torch.tensor([True, False, True]),
    "complex": torch.tensor([[1 + 2j, -3j, 0.5]]),
}

# Uninitialised memory; what crashes torch itself; other devices; storages, which are the copy's;
# and `apply_`, which is refused.
LEFT_OUT = frozenset(
    "apply_ const_data_ptr cuda data_ptr hpu ipu mtia mvlgamma mvlgamma_ new_empty "
    "new_empty_strided pin_memory record_stream resize resize_as share_memory_ storage "
    "untyped_storage xpu".split()
)
METHODS = [
    name
    for name in dir(torch.Tensor)
    if not name.startswith("_") and name not in LEFT_OUT and callable(getattr(torch.Tensor, name))
]


def described(x: object) -> object:
    """A result, without what may differ."""
    if isinstance(x, torch.Tensor):
        values = x if x.is_quantized or x.is_meta else x.to_dense().tolist()
        flags = isinstance(x, torch.nn.Parameter), x.requires_grad, x.is_leaf
        return tuple(x.shape), x.dtype, x.layout, flags, str(values)
    if isinstance(x, (tuple, list)):
        return [described(y) for y in x]
    return repr(x) if isinstance(x, (bool, int, float, complex, str, torch.dtype)) else type(x)


def outcome(name: str, tensor: torch.Tensor, args: Sequence[object]) -> tuple[object, object]:
    """What a method returns or raises, and what it leaves of the tensor."""
    torch.manual_seed(0)
    try:
        found = described(getattr(tensor, name)(*[tensor if a is ... else a for a in args]))
    except Exception as error:
        found = type(error)
    return found, described(tensor)


@pytest.mark.sample(16, seed=0)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("args", [(), (0,), (...,), (torch.float64,)], ids=str)
@pytest.mark.parametrize("kind", GIVEN)
def test_result_methods_match_torch(kind: str, args: tuple[object, ...]) -> None:
    differ: dict[str, Any] = {}
    for name in METHODS:
        found = outcome(name, made(GIVEN[kind]), args)
        wanted = outcome(name, GIVEN[kind].clone(), args)
        if found != wanted:
            differ[name] = found, wanted
    assert not differ


SPARSE: dict[str, Callable[[torch.Tensor], Any]] = {
    "coo": lambda x: torch.sparse_coo_tensor(torch.tensor([[0, 2]]), x, (3,)),
    "csr": lambda x: torch.sparse_csr_tensor([0, 1, 2], torch.tensor([0, 1]), x),
    "nested": lambda x: torch.nested.as_nested_tensor([x, x]),
}


@pytest.mark.filterwarnings("ignore:Sparse", "ignore:The PyTorch API of nested")
@pytest.mark.parametrize("make", SPARSE.values(), ids=SPARSE)
def test_result_as_part_of_sparse_or_nested_tensor(make: Callable[[torch.Tensor], Any]) -> None:
    """What is written to the parts of another tensor, programs see."""
    found, wanted = made(torch.tensor([1.0, 2.0])), torch.tensor([1.0, 2.0])
    for x in (found, wanted):
        values = make(x).values() if make is not SPARSE["coo"] else torch.Tensor._values(make(x))
        values[0] = 9
    assert made(found).tolist() == found.tolist() == wanted.tolist()


def test_result_as_parameter_copied_and_saved() -> None:
    """They stayed no parameters: neither copies, nor what was saved."""
    layer = torch.nn.Linear(2, 2, bias=False)
    layer.weight = torch.nn.Parameter(made(torch.ones(2, 2)))
    plain = copy.deepcopy(layer)
    plain.weight = torch.nn.Parameter(torch.ones(2, 2))
    buffer = io.BytesIO()
    torch.save(layer, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)
    for other in (copy.deepcopy(layer), loaded):
        assert isinstance(other.weight, torch.nn.Parameter)
        assert [name for name, _ in other.named_parameters()] == ["weight"]
    assert repr(layer.weight) == repr(plain.weight)
    frozen = torch.nn.Parameter(made(torch.ones(2)), requires_grad=False)
    assert not copy.deepcopy(frozen).requires_grad
    assert repr(made(torch.ones(2)).requires_grad_()) == repr(torch.ones(2, requires_grad=True))
