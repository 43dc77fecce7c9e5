"""`xf.functional`: torch modules as pure functions, against the modules in eager torch."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils import _pytree as torch_pytree

import xfunc as xf
from tests.modules.common import assert_close, gradients, rand
from tests.support.fresh import Server

pytestmark = pytest.mark.usefixtures("seeded")


class Block(nn.Module):
    """A residual block with two kinds of normalisation."""

    def __init__(self, n: int):
        super().__init__()
        self.first = nn.Conv2d(n, n, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(n)
        self.second = nn.Conv2d(n, n, 3, padding=1)
        self.groups = nn.GroupNorm(2, n)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).relu()
        return (x + self.groups(self.second(self.norm(h)))).relu()


class Tied(nn.Module):
    """An embedding that is also the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 8, padding_idx=0)
        self.head = nn.Linear(8, 10, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.embed(ids))


class SelfAttention(nn.Module):
    """Attention of a sequence to itself."""

    def __init__(self, **options: Any):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, **options)

    def forward(self, x: Tensor, **options: Any) -> Any:
        return self.attention(x, x, x, **options)


def resnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2), nn.MaxPool2d(2), Block(4), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(4, 3),
    )  # fmt: skip


def encoder(**options: Any) -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, **options)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=not options)


IDS = torch.tensor([[1, 2, 0], [3, 4, 0]])
CAUSAL = nn.Transformer.generate_square_subsequent_mask(5)
PADDING = torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 0, 0]]).bool()
ADDED = torch.zeros(2, 5).masked_fill(PADDING, float("-inf"))

# (name, module, arguments, keyword arguments)
Case = tuple[str, Callable[[], nn.Module], tuple[Tensor, ...], dict[str, Any]]
CASES: list[Case] = [
    ("batch norm 1d", lambda: nn.BatchNorm1d(8), (rand(5, 8),), {}),
    ("batch norm 2d", lambda: nn.BatchNorm2d(3), (rand(5, 3, 4, 4),), {}),
    ("no affine", lambda: nn.BatchNorm1d(8, affine=False), (rand(5, 8, 2),), {}),
    ("no statistics", lambda: nn.BatchNorm1d(8, track_running_stats=False), (rand(5, 8),), {}),
    (
        "instance norm",
        lambda: nn.InstanceNorm2d(3, affine=True, track_running_stats=True),
        (rand(5, 3, 4, 4),),
        {},
    ),
    ("plain instance norm", lambda: nn.InstanceNorm1d(3), (rand(5, 3, 4),), {}),
    ("layer norm", lambda: nn.LayerNorm(8), (rand(3, 8),), {}),
    ("rms norm", lambda: nn.RMSNorm(8), (rand(3, 8),), {}),
    ("resnet", resnet, (rand(2, 3, 12, 12),), {}),
    ("tied weights", Tied, (IDS,), {}),
    ("attention", SelfAttention, (rand(5, 2, 8),), {}),
    (
        "masked attention",
        SelfAttention,
        (rand(5, 2, 8),),
        {"attn_mask": CAUSAL, "key_padding_mask": ADDED},
    ),
    (
        "padded attention",
        SelfAttention,
        (rand(5, 2, 8),),
        {"key_padding_mask": PADDING, "need_weights": False},
    ),
    (
        "causal attention",
        lambda: SelfAttention(batch_first=True),
        (rand(2, 5, 8),),
        {"attn_mask": CAUSAL, "is_causal": True, "need_weights": False},
    ),
    ("encoder", encoder, (rand(2, 5, 8),), {}),
    ("padded encoder", encoder, (rand(2, 5, 8),), {"src_key_padding_mask": PADDING}),
    (
        "encoder, norm first",
        lambda: encoder(norm_first=True, activation="gelu"),
        (rand(2, 5, 8),),
        {"mask": CAUSAL},
    ),
    ("lstm", lambda: nn.LSTM(4, 6, 2, batch_first=True), (rand(2, 3, 4),), {}),
    ("both ways", lambda: nn.LSTM(4, 6, bidirectional=True), (rand(3, 2, 4),), {}),
    ("gru", lambda: nn.modules.GRU(4, 6, batch_first=True), (rand(2, 3, 4),), {}),
    ("gru cell", lambda: nn.GRUCell(4, 6), (rand(2, 4),), {}),
    ("weight norm", lambda: parametrizations.weight_norm(nn.Linear(4, 6)), (rand(2, 4),), {}),
    (
        "weighted loss",
        lambda: nn.CrossEntropyLoss(torch.rand(5), ignore_index=1, label_smoothing=0.1),
        (rand(4, 5), torch.tensor([0, 1, 2, 4])),
        {},
    ),
    ("soft labels", nn.CrossEntropyLoss, (rand(4, 5), rand(4, 5).softmax(1)), {}),
]  # fmt: skip


def weighted_sum(out: Any) -> Tensor:
    """A number that depends on each element of each floating tensor in a tree."""
    total: Any = 0.0
    for t in torch_pytree.tree_leaves(out):
        if isinstance(t, Tensor) and t.is_floating_point():
            w = torch.linspace(0.5, 1.5, t.numel(), dtype=t.dtype, device=t.device)
            total = total + (t * w.reshape(t.shape)).sum()
    return total


@pytest.mark.sample(6, seed=0)
@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_functional_value_grads_buffers_equal_eager(case: Case, mode: str) -> None:
    _, make, args, options = case
    module = make()
    module.train(mode == "train")
    apply, params, buffers = xf.functional(module)
    static = {k: v for k, v in options.items() if not isinstance(v, Tensor)}
    masks = {k: v for k, v in options.items() if isinstance(v, Tensor)}
    before = copy.deepcopy(module.state_dict())

    def loss(params, buffers, x, rest, masks):
        out, new = apply(params, buffers, x, *rest, **masks, **static)
        return weighted_sum(out), new

    wrt = (0, 2) if args[0].is_floating_point() else (0,)
    step = xf.jit(xf.value_and_grad(loss, argnums=wrt, has_aux=True))
    (value, new), grads = step(params, buffers, args[0], args[1:], masks)

    torch.testing.assert_close(dict(module.state_dict()), dict(before), rtol=0, atol=0)
    x = args[0].clone().requires_grad_(2 in wrt)
    expected = weighted_sum(module(x, *args[1:], **options))
    if expected.requires_grad:
        expected.backward()
    assert_close(value, expected.detach())
    assert_close(grads[0], gradients(module))
    assert_close(new, dict(module.named_buffers()))
    if 2 in wrt:
        assert_close(grads[1], x.grad)


def test_functional_batch_norm_steps_equal_eager() -> None:
    module = resnet().double()
    apply, params, buffers = xf.functional(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)

    @xf.jit
    def step(params, buffers, x, y):
        def loss(params):
            out, new = apply(params, buffers, x)
            return F.cross_entropy(out, y), new

        (value, new), grads = xf.value_and_grad(loss, has_aux=True)(params)
        return xf.tree.map(lambda p, g: p - 0.1 * g, params, grads), new, value

    for i in range(4):
        x, y = torch.rand(4, 3, 12, 12, dtype=torch.float64), torch.arange(4) % 3
        params, buffers, value = step(params, buffers, x, y)
        expected = F.cross_entropy(module(x), y)
        optimizer.zero_grad()
        expected.backward()
        optimizer.step()
        torch.testing.assert_close(value.cpu(), expected.detach())
        assert buffers["2.norm.num_batches_tracked"].item() == i + 1
    torch.testing.assert_close(xf.device_get(params), dict(module.named_parameters()))
    torch.testing.assert_close(xf.device_get(buffers), dict(module.named_buffers()))
    assert step.cache_info().traces == 1


def test_functional_tied_weight_appears_once() -> None:
    apply, params, buffers = xf.functional(Tied())
    assert list(params) == ["embed.weight"]
    assert buffers == {}
    assert repr(apply).startswith("<functional(Tied): (params, buffers,")


# -- torch_xla ------------------------------------------------------------------------------------


def test_torch_xla_loaded_by_xfunc_replaces_nothing(fresh: Server) -> None:
    """Where xfunc loads it. (In this process another test may have been first.)"""
    code = """
import torch, xfunc as xf
before = torch.nn.GRU, torch.nn.utils.clip_grad_norm_
xf.jit(torch.sin)(torch.ones(2))
assert before == (torch.nn.GRU, torch.nn.utils.clip_grad_norm_)
"""
    done = fresh.run(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.torch_xla
def test_functional_gru_of_torch_xla() -> None:
    """It stands in place of torch's where torch_xla came first. Its scan can't be traced."""
    from torch_xla.experimental import gru  # pyright: ignore[reportMissingImports]

    module = nn.modules.GRU(4, 6)
    theirs = gru.GRU(4, 6)
    theirs.load_state_dict(module.state_dict())
    apply, params, buffers = xf.functional(theirs)
    x = rand(3, 2, 4)
    out, _ = xf.jit(apply)(params, buffers, x)
    torch.testing.assert_close(xf.device_get(out), tuple(t.detach() for t in module(x)))

    class Biased(gru.GRU):
        def forward(self, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
            return x + self.bias_hh_l0.sum()  # pyright: ignore[reportCallIssue]

    apply, params, buffers = xf.functional(own := Biased(4, 6))
    assert_close(xf.jit(apply)(params, buffers, x)[0], own(x).detach())
