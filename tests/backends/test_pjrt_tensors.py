"""What JAX's runtime hands out as tensors: shapes that change in place, and donated ones."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import xfunc as xf
from tests.backends.test_pjrt import array_type

pytestmark = pytest.mark.usefixtures("pjrt")


def made(shape: tuple[int, ...] = (2, 3)) -> torch.Tensor:
    n = torch.Size(shape).numel()
    return xf.jit(lambda x: x + 1)(torch.arange(float(n)).reshape(shape))


RESHAPED: dict[str, Callable[[torch.Tensor], object]] = {
    "t_": lambda x: x.t_(),
    "transpose_": lambda x: x.transpose_(0, 1),
    "swapaxes_": lambda x: x.swapaxes_(1, 0),
    "unsqueeze_": lambda x: x.unsqueeze_(1),
    "squeeze_": lambda x: x.unsqueeze_(0).squeeze_(),
    "as_strided_": lambda x: x.as_strided_((2, 2), (1, 2), 1),
    "resize_": lambda x: x.resize_(3, 2),
    "a smaller resize_": lambda x: x.resize_(4),
    "resize_as_": lambda x: x.resize_as_(torch.ones(3, 1)),
    "set_": lambda x: x.set_(torch.arange(4.0)),  # pyright: ignore[reportArgumentType]
    "and written": lambda x: x.t_().add_(1),
    "twice": lambda x: x.t_().unsqueeze_(0),
}


@pytest.mark.parametrize("change", RESHAPED.values(), ids=RESHAPED)
def test_result_reshaped_in_place(change: Callable[[torch.Tensor], object]) -> None:
    """The tensor kept its shape, and JAX was handed data of another."""
    want, x = made().cpu(), made()
    alias = x.detach()
    change(want)
    change(x)
    assert (x.shape, x.stride()) == (want.shape, want.stride())
    torch.testing.assert_close(x.cpu(), want)
    torch.testing.assert_close(xf.jit(lambda x: x * 2)(x).cpu(), want * 2)
    assert alias.shape == (2, 3)
    assert xf.jit(lambda x: x * 2)(alias).shape == (2, 3)


def test_result_alias_shares_memory_after_reshape() -> None:
    x = made()
    alias = x.detach()
    x.t_()[0] = 9
    assert alias.tolist() == [[9, 2, 3], [9, 5, 6]]
    assert xf.jit(lambda x: x + 1)(alias).tolist() == [[10, 3, 4], [10, 6, 7]]


# ------------------------------------------------------------------------------------ donation

State = dict[str, Any]


def step(state: State) -> State:
    return {k: x + 1 for k, x in state.items()}


def states() -> tuple[Any, State]:
    """A jitted step, and a state, some steps on."""
    jitted = xf.jit(step, donate_argnums=0)
    state: State = {"a": made(), "b": made((4,)), "c": made(), "n": made((1,)).long()}
    for _ in range(3):
        state = jitted(state)
    return jitted, state


def values(state: State) -> list[Any]:
    return [x.tolist() for x in state.values()]


def test_donated_step_reuses_tensors() -> None:
    jitted, state = states()
    Array = array_type()
    used, want = set[int](), step({k: x.cpu() for k, x in state.items()})
    for _ in range(6):
        used |= set(map(id, state.values()))
        state = jitted(state)
        assert values(state) == values(want)
        want = step(want)
    assert len(used) <= 3 * len(state)  # Without it, any number.
    assert all(type(x) is Array for x in state.values())


KEPT: dict[str, Callable[[torch.Tensor], object]] = {
    "the tensor": lambda x: x,
    "a weak reference": weakref.ref,
    "a view": lambda x: x.view(-1),
    "a detached tensor": lambda x: x.detach(),
    "what autograd saved": lambda x: x * torch.ones(2, 3, requires_grad=True),
    "a gradient": lambda x: setattr(x, "grad", torch.ones(2, 3)),
    "an attribute": lambda x: setattr(x, "label", "weights"),
    "a gradient required": lambda x: x.requires_grad_().requires_grad_(False),
    "a gradient computed": lambda x: (
        (x.requires_grad_() * 2).sum().backward(),
        x.requires_grad_(False),
    ),
    "a write": lambda x: x.mul_(1),
    "another shape": lambda x: x.t_().t_(),
    "a parameter": lambda x: torch.nn.Parameter(x),
    "a copy": lambda x: x + 1,
}


@pytest.mark.parametrize("donated", [False, True], ids=["before", "afterwards"])
@pytest.mark.parametrize("keep", KEPT.values(), ids=KEPT)
def test_donated_tensor_with_references_is_not_reused(
    keep: Callable[[torch.Tensor], object], donated: bool
) -> None:
    """Of all that is known about a tensor, nothing shows in the results of later steps."""
    jitted, state = states()
    Array = array_type()
    want = step({k: x.cpu() for k, x in state.items()})
    tensor = state["a"]
    kept: list[object] = []
    if not donated:
        kept.append(keep(tensor))
    state = jitted(state)
    if donated:
        kept += [weakref.ref(tensor), tensor]
        tensor.label = "weights"  # type: ignore[attr-defined]
    del tensor
    for _ in range(4):
        assert values(state) == values(want)
        for x in state.values():
            assert type(x) is Array
            assert not x.requires_grad
            assert x.grad is None
            assert x.is_leaf
            assert not x.__dict__
            assert x._base is None
            assert all(x is not k for k in kept)
        state, want = jitted(state), step(want)
    if donated:
        with pytest.raises(RuntimeError, match="was donated to a jitted function"):
            kept[1] + 1  # type: ignore[operator]


def test_donated_tensors_are_freed_with_their_attributes() -> None:
    jitted, state = states()
    ends = []
    weakref.finalize(state["a"], ends.append, "a")

    class Note:
        pass

    state["b"].note = note = Note()
    weakref.finalize(note, ends.append, "b")
    del note
    state = jitted(state)
    gc.collect()
    assert sorted(ends) == ["a", "b"]


def test_donated_tensor_aliases_are_unusable() -> None:
    f = xf.jit(lambda x: x + 1, donate_argnums=0)
    x = made()
    alias = x.detach()
    f(x)
    for use in (lambda: alias + 1, lambda: xf.jit(torch.sin)(alias), alias.tolist):
        with pytest.raises(RuntimeError, match=r"shares its memory with one that was donated"):
            use()
    x = made()
    g = xf.jit(lambda x, y: (x + 1, y + 1), donate_argnums=0)
    with pytest.raises(ValueError, match=r"given one tensor twice(.|\n)*clone"):
        g(x, x.detach())
    assert x.tolist() == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize(
    "use", [lambda x: x.numpy(), lambda x: x.detach(), lambda x: x.tolist(), lambda x: x.data_ptr()]
)
def test_donated_tensors_are_unusable(use: Callable[[torch.Tensor], object]) -> None:
    x = made()
    xf.jit(lambda x: x + 1, donate_argnums=0)(x)
    assert repr(x) == "<donated tensor>"
    assert x.shape == (2, 3)  # As of JAX's deleted arrays.
    with pytest.raises(RuntimeError, match="was donated to a jitted function"):
        use(x)
    with pytest.raises(RuntimeError, match="was donated to a jitted function"):
        xf.jit(lambda x: x + 1)(x)


@pytest.mark.parametrize("shape", [(), (3,), (64, 48)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16], ids=str)
def test_device_put_copies(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """JAX took the memory of torch's tensors, which is aligned, as its own."""
    given = torch.ones(shape, dtype=dtype)
    whole, turned = xf.device_put(given), xf.device_put(given.t())
    added = xf.jit(lambda x: x + 1)(given)
    given.zero_()
    assert whole.tolist() == turned.t().tolist() == torch.ones(shape).tolist()
    assert added.tolist() == torch.full(shape, 2.0).tolist()


def test_deepcopy_of_several_results() -> None:
    """All had the value of the first: torch remembers copies by the ids of what it copies."""
    x, scalar = made(), xf.jit(torch.sum)(torch.ones(3))
    tree = {"a": x, "b": scalar, "again": x, "of torch": torch.ones(1)}
    found = copy.deepcopy(tree)
    assert found["a"] is found["again"]
    for name, tensor in found.items():
        assert type(tensor) is torch.Tensor
        assert torch.equal(tensor, tree[name].cpu())
    found["a"].zero_()
    assert x.tolist() == [[1, 2, 3], [4, 5, 6]]

    layer = torch.nn.Linear(3, 2)
    for name, p in list(layer.named_parameters()):
        setattr(layer, name, torch.nn.Parameter(xf.device_put(p.detach())))
    copied = dict(copy.deepcopy(layer).named_parameters())
    assert copied.keys() == {"weight", "bias"}
    torch.testing.assert_close(copied, dict(layer.named_parameters()))


def test_deepcopy_keeps_gradient_and_attributes() -> None:
    x: Any = made().requires_grad_()
    x.square().sum().backward()
    x.label = ["weights"]
    found: Any = copy.deepcopy(x)
    assert found.requires_grad
    assert found.is_leaf
    assert found.grad.tolist() == [[2, 4, 6], [8, 10, 12]]
    assert found.grad is not x.grad
    assert found.label == x.label
    assert found.label is not x.label
    with pytest.raises(RuntimeError, match="Only Tensors created explicitly by the user"):
        copy.deepcopy(x * 2)


def test_format_of_scalar_results() -> None:
    value = xf.jit(torch.sum)(torch.ones(3) / 4)
    assert f"{value:.3f} {value:8.1e} {value}" == f"{0.75:.3f} {0.75:8.1e} {0.75}"
    assert f"{made((2,))}" == "tensor([1., 2.])"
    with pytest.raises(TypeError, match="unsupported format string"):
        f"{made():.3f}"


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_torch_compile_takes_results(backend: str) -> None:
    """Untouched ones, too: dynamo compiled how their data is read."""
    f = torch.compile(lambda x, y: (x + 1) * y.sum(), backend=backend)
    assert f(made((2,)), made((2,))).tolist() == [6, 9]
    w = torch.ones(2, requires_grad=True)
    f(w, made((2,))).sum().backward()
    assert w.grad is not None
    assert w.grad.tolist() == [3, 3]


def test_result_data_assignment() -> None:
    """It was copied into the old memory: of another dtype or shape, and aliases saw it."""

    def seen(x: torch.Tensor) -> list[Any]:
        return xf.jit(lambda x: x * 1)(x.detach()).tolist()

    x = made()
    alias, x.data = x.detach(), x.data.double() + 1
    assert x.dtype == torch.float64
    assert x.tolist() == seen(x) == [[2, 3, 4], [5, 6, 7]]
    assert alias.tolist() == seen(alias) == [[1, 2, 3], [4, 5, 6]]
    other = torch.arange(6.0).reshape(3, 2).T
    x.data = other
    assert x.stride() == (1, 2)
    other += 1
    assert x.tolist() == seen(x) == [[1, 3, 5], [2, 4, 6]]
    y = made((2,))
    x.data = y
    y.zero_()
    assert x.tolist() == seen(x) == [0, 0]
    w = made((2,)).requires_grad_()
    w.square().sum().backward()
    w.data = w.data * 3
    assert w.grad is not None
    assert (w.tolist(), w.grad.tolist()) == ([3, 6], [2, 4])

    layer: Any = torch.nn.Linear(2, 1)
    layer.weight = torch.nn.Parameter(made((1, 2)))
    layer.double()
    assert layer.weight.dtype == torch.float64
    assert layer(torch.ones(2, dtype=torch.float64)).item() == 3 + layer.bias.item()


def test_plain_tensor_with_result_as_data_is_refused() -> None:
    """Each of these ended the process."""

    def with_data(x: torch.Tensor) -> torch.Tensor:
        x.data = made()  # refused here where torch, built without CUDA, cannot refuse reads
        return x

    layer = torch.nn.Linear(3, 2)
    for read in (
        lambda: repr(with_data(layer.weight)),
        lambda: (with_data(layer.weight), layer(torch.ones(3))),
        lambda: with_data(torch.zeros(2, 3)) + 1,
        lambda: made().apply_(lambda v: v * 2),
        lambda: torch.to_dlpack(made()),
    ):
        with pytest.raises(RuntimeError, match=_REFUSED):
            read()


def test_torch_tensor_of_results_that_are_numbers() -> None:
    """torch reads them by `__float__`, which read memory that results do not have."""
    one = xf.jit(lambda: torch.ones(()))()
    assert torch.tensor([one, 2.0, one + 2]).tolist() == [1, 2, 3]
    assert torch.tensor([[one.bool(), False]]).tolist() == [[True, False]]


# Builds of torch without CUDA say the others themselves.
_REFUSED = (
    r"holds the data of this\b[\s\S]*Hint: give|Cannot access data pointer of Tensor|"
    "its data is not allocated yet"
)


@pytest.mark.parametrize("shape", [(0,), (2, 0, 3), (0, 4), (3, 0)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_result_without_elements(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    want = torch.zeros(shape, dtype=dtype)
    got = xf.jit(lambda x: x + 0)(want)
    assert got.view(torch.uint8).shape == want.view(torch.uint8).shape
    assert got.clone().stride() == got.stride() == want.stride()


def test_result_storage_is_not_resizable() -> None:
    for grow in (lambda x: x.resize_(9), lambda x: torch.ones(9, out=x)):
        with pytest.raises(RuntimeError, match="storage that is not resizable"):
            grow(made())
        assert grow(made().clone()).shape == (9,)


READS: dict[str, Callable[[torch.Tensor], Any]] = {
    "tolist": lambda x: x.tolist(),
    "item": lambda x: x[1].item(),
    "float": lambda x: float(x.sum()),
    "numpy": lambda x: x.numpy().tolist(),
    "array": lambda x: np.asarray(x).tolist(),
    "cpu": lambda x: x.cpu(),
    "deepcopy": copy.deepcopy,
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "dlpack": torch.from_dlpack,
    "data_ptr": lambda x: x.data_ptr() != 0,
    "untyped_storage": lambda x: x.untyped_storage().nbytes(),
    "repr": repr,
    "operation": lambda x: (x + 1).tolist(),
}


MODES = {"default device": lambda: torch.device("cpu"), "disable_jit": xf.disable_jit}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", READS)
def test_results_are_read_in_a_mode(name: str, mode: str) -> None:
    """`torch.set_default_device` and `disable_jit` enter a mode, as a trace does."""
    read, x = READS[name], torch.tensor([1.0, 2.0])
    y = xf.jit(lambda x: x * 1)(x)
    with MODES[mode]():
        got = read(y)
    want = read(x)
    if isinstance(want, torch.Tensor):
        assert type(got) is torch.Tensor
        got, want = got.tolist(), want.tolist()
    assert got == want
