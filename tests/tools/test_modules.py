"""`xf.functional`: torch modules as pure functions, against the modules in eager torch."""

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils import _pytree as torch_pytree

import xfunc as xf
from tests.support.fresh import Server

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


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


def rand(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(1))


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


def assert_close(ours: Any, theirs: Any) -> None:
    torch.testing.assert_close(xf.device_get(ours), theirs, rtol=2e-4, atol=2e-5)


def gradients(module: nn.Module) -> dict[str, Tensor]:
    """What `backward` left in a module, zeros where it left nothing."""
    return {
        n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in module.named_parameters()
    }


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_value_gradients_and_buffers_match_eager(case: Case, mode: str) -> None:
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


def test_several_steps_of_batch_norm_match_eager() -> None:
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


def test_a_tied_weight_appears_once() -> None:
    apply, params, buffers = xf.functional(Tied())
    assert list(params) == ["embed.weight"]
    assert buffers == {}
    assert repr(apply).startswith("<functional(Tied): (params, buffers,")


# -- purity ---------------------------------------------------------------------------------------


def attributes(module: nn.Module) -> list[dict[str, Any]]:
    """All that stands in the attributes of all submodules, as it is."""
    inside = ("_parameters", "_buffers", "_modules")
    return [{**vars(m), **{k: dict(vars(m)[k]) for k in inside}} for m in module.modules()]


class Busy(nn.Module):
    """A module that changes all it has in its forward pass."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()), persistent=False)
        self.register_buffer("last", torch.zeros(3))
        self.weight = nn.Parameter(torch.ones(3))
        self.calls = 0

    def forward(self, x: Tensor, fail: bool = False) -> Tensor:
        self.count += 1
        self.last = x * self.weight
        self.calls += 1
        self.cached = self.last
        self.register_buffer("more", self.last)
        if fail:
            raise KeyError("as asked")
        return self.last * self.count


@pytest.mark.parametrize("eager", [False, True])
def test_buffers_come_back_and_the_module_stays_as_it_is(eager: bool) -> None:
    module = Busy()
    before = attributes(module)
    apply, params, buffers = xf.functional(module)
    assert set(buffers) == {"count", "last"}
    x = torch.tensor([1.0, 2.0, 3.0])
    with xf.disable_jit(eager):
        run = xf.jit(apply)
        for i in range(1, 3):
            out, buffers = run(params, buffers, x)
            assert_close(out, x * i)
            assert_close(buffers, {"count": torch.tensor(float(i)), "last": x})
    after = attributes(module)
    assert [d.keys() for d in before] == [d.keys() for d in after]
    for old, new in zip(before, after, strict=True):
        for key in old.keys() - {"_parameters", "_buffers", "_modules"}:
            assert old[key] is new[key]
        assert all(old["_buffers"][k] is t for k, t in new["_buffers"].items())
        assert all(old["_parameters"][k] is t for k, t in new["_parameters"].items())
    assert module.count.item() == module.calls == 0


@pytest.mark.parametrize("eager", [False, True])
def test_a_forward_pass_that_raises_changes_nothing(eager: bool) -> None:
    module = Busy()
    apply, params, buffers = xf.functional(module)
    x = torch.ones(3)
    with xf.disable_jit(eager), pytest.raises(KeyError, match="as asked"):
        xf.jit(lambda p, b, x: apply(p, b, x, fail=True))(params, buffers, x)
    assert module.weight is dict(module.named_parameters())["weight"]
    assert isinstance(module.weight, nn.Parameter)
    assert module.calls == 0
    assert not hasattr(module, "cached")
    assert not hasattr(module, "more")
    out, _ = xf.jit(apply)(params, buffers, x)
    assert_close(out, x)


def test_the_tensors_are_copies() -> None:
    module = nn.BatchNorm1d(2)
    _, params, buffers = xf.functional(module)
    with torch.no_grad():
        module.weight.add_(1)
        next(module.buffers()).add_(1)
    assert_close(params["weight"], torch.ones(2))
    assert_close(buffers["running_mean"], torch.zeros(2))
    assert not any(t.requires_grad for t in params.values())
    module = module.to(params["weight"].device)
    _, params, buffers = xf.functional(module)
    run = xf.jit(lambda p, b: (xf.tree.map(lambda t: t + 1, p), b), donate_argnums=(0, 1))
    run(params, buffers)
    assert_close(module.weight.detach(), torch.full((2,), 2.0))
    assert_close(module.running_mean, torch.ones(2))


def test_a_parameter_changed_in_place_is_refused() -> None:
    class Bad(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            with torch.no_grad():
                self.weight.mul_(2)
            return super().forward(input)

    apply, params, buffers = xf.functional(Bad(2, 2))
    with pytest.raises(xf.errors.PurityError, match=r"mul_ changes params\['weight'\]"):
        xf.jit(apply)(params, buffers, torch.ones(1, 2))


def test_outside_of_transforms_it_runs_eagerly() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    apply, params, buffers = xf.functional(module)
    x = rand(4, 3)
    out, new = apply(params, buffers, x)
    on_host, _ = apply(xf.device_get(params), xf.device_get(buffers), x)
    expected = module(x).detach()
    assert_close(out, expected)
    assert_close(on_host, expected)
    assert_close(new, {f"1.{n}": b for n, b in module[1].named_buffers()})


# -- the cache ------------------------------------------------------------------------------------

_apply: Any = None


@pytest.mark.parametrize("held", ["global", "closure"])
def test_the_mode_is_that_of_the_call(held: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    apply, params, buffers = xf.functional(module)
    monkeypatch.setitem(globals(), "_apply", apply)
    through_closure = xf.jit(lambda p, x: apply(p, buffers, x)[0])
    through_global = xf.jit(lambda p, x: _apply(p, buffers, x)[0])
    inner = through_global if held == "global" else through_closure
    xf.clear_caches()
    outer = xf.jit(lambda p, x: inner(p, x) * 2)
    x = rand(4, 3)
    for training in (True, False, True, False):
        module.train(training)
        expected = copy.deepcopy(module)(x).detach()
        assert_close(inner(params, x), expected)
        assert_close(outer(params, x), expected * 2)
    assert inner.cache_info().traces == 2
    assert outer.cache_info().traces == 2
    assert outer.cache_info().size == 2


def test_the_report_says_what_changed() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)).eval()
    apply, params, _ = xf.functional(module)
    run = xf.jit(lambda p, x: apply(p, {}, x)[0])
    run(params, rand(2, 3))
    module[0].train()
    run(params, rand(2, 3))
    assert "last miss: the state of a module changed: False -> True in 0.training" in run.explain()


class Configured(nn.Module):
    """A module that computes by a plain object, a list and a hook."""

    @dataclasses.dataclass
    class Config:
        scale: float = 2.0

    def __init__(self) -> None:
        super().__init__()
        self.config = self.Config()
        self.shifts = [1.0]
        self.table = torch.ones(2)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.config.scale + sum(self.shifts) + self.table


def double(module: nn.Module, args: Any, out: Any) -> Any:
    return out * 2


def test_attributes_count_by_value() -> None:
    module = Configured()
    apply, params, buffers = xf.functional(module)
    run = xf.jit(lambda x: apply(params, buffers, x)[0])
    x = torch.tensor([1.0, 2.0])

    def check(traces: int) -> None:
        assert_close(run(x), module(x))
        assert run.cache_info().traces == traces

    check(1)
    module.config.scale = 3.0
    check(2)
    module.config = Configured.Config(3.0)  # The same value.
    check(2)
    module.shifts.append(4.0)
    check(3)
    module.table = torch.zeros(2)
    check(4)
    hook = module.register_forward_hook(double)
    check(5)
    hook.remove()
    check(5)
    module.config.scale = 2.0
    check(6)


def test_two_modules_of_one_class_do_not_share_programs() -> None:
    def of(module: nn.Module) -> Any:
        apply, params, buffers = xf.functional(module)
        return xf.jit(lambda x: apply(params, buffers, x)[0])(torch.ones(2))

    first, second = nn.Threshold(0.0, 1.0), nn.Threshold(5.0, 7.0)
    assert_close(of(first), torch.ones(2))
    assert_close(of(second), torch.full((2,), 7.0))
    assert_close(of(nn.Sequential(first, second)), torch.full((2,), 7.0))


def test_a_module_inside_itself() -> None:
    inner = nn.Linear(2, 2)
    apply, params, _ = xf.functional(inner)

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            again = xf.jit(lambda p, x: apply(p, {}, x)[0])(params, x)
            return self.inner(x) * (1 if self.training else 3) + again

    outer = Outer()
    apply_outer, outer_params, _ = xf.functional(outer)
    run = xf.jit(lambda p, x: apply_outer(p, {}, x)[0])
    run.clear_cache()
    x = rand(1, 2)
    for factor in (2, 4, 2, 4):
        outer.train(factor == 2)
        assert_close(run(outer_params, x), factor * inner(x).detach())
    assert run.cache_info().traces == 2


# -- transforms -----------------------------------------------------------------------------------


@pytest.fixture
def net() -> Any:
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    return module, *xf.functional(module)[:2], rand(5, 3).double()


def test_an_ensemble_is_a_vmap_over_parameters(net: Any) -> None:
    module, apply, params, x = net
    many = xf.tree.map(lambda p: torch.stack([p, p * 2, p * 3]), params)
    out = xf.vmap(lambda p: apply(p, {}, x)[0])(many)
    for i in range(3):
        scaled = copy.deepcopy(module)
        with torch.no_grad():
            for p in scaled.parameters():
                p.mul_(i + 1)
        torch.testing.assert_close(out[i].cpu(), scaled(x).detach())


def test_gradients_of_each_example(net: Any) -> None:
    module, apply, params, x = net
    grads = xf.vmap(xf.grad(lambda p, x: apply(p, {}, x)[0].square().sum()), in_axes=(None, 0))
    found = grads(params, x)
    for i in range(len(x)):
        module.zero_grad()
        module(x[i]).square().sum().backward()
        torch.testing.assert_close(xf.device_get(found["0.weight"][i]), module[0].weight.grad)


def test_scan_checkpoint_and_second_order(net: Any) -> None:
    module, apply, params, x = net

    def loss(params, x, wrap):
        def body(carry, x):
            y = wrap(lambda p, x: apply(p, {}, x)[0])(params, x + carry)
            return y.sum(), y

        return xf.scan(body, torch.zeros((), dtype=x.dtype), x)[1].square().sum()

    def eager(x):
        carry, total = torch.zeros((), dtype=x.dtype), torch.zeros((), dtype=x.dtype)
        for row in x:
            y = module(row + carry)
            carry, total = y.sum(), total + y.square().sum()
        return total

    weights = list(module.parameters())
    first = torch.autograd.grad(eager(x), weights, create_graph=True)
    second = torch.autograd.grad(torch.stack([g.square().sum() for g in first]).sum(), weights)
    expected = dict(zip(dict(module.named_parameters()), second, strict=True))
    for wrap in (lambda f: f, xf.checkpoint, xf.jit):

        def norm(params, wrap=wrap):
            grads = xf.grad(lambda p: loss(p, x, wrap))(params)
            return sum(g.square().sum() for g in grads.values())

        torch.testing.assert_close(xf.device_get(xf.jit(xf.grad(norm))(params)), expected)


def test_forward_mode(net: Any) -> None:
    module, apply, params, x = net
    out, tangent = xf.jvp(lambda p: apply(p, {}, x)[0], (params,), (params,))
    expected = torch.func.jvp(
        lambda p: torch.func.functional_call(module, p, x),
        (dict(module.named_parameters()),),
        (dict(module.named_parameters()),),
    )
    torch.testing.assert_close(xf.device_get((out, tangent)), tuple(t.detach() for t in expected))


def test_under_vmap_each_example_has_buffers_of_its_own() -> None:
    module = nn.BatchNorm1d(3)
    apply, params, buffers = xf.functional(module)
    x = rand(2, 4, 3)
    out, new = xf.jit(xf.vmap(lambda x: apply(params, buffers, x)))(x)
    for i in range(2):
        alone = copy.deepcopy(module)
        assert_close(out[i], alone(x[i]).detach())
        assert_close({k: v[i] for k, v in new.items()}, dict(alone.named_buffers()))
    module.eval()
    out, new = xf.jit(xf.vmap(lambda x: apply(params, buffers, x), out_axes=(0, None)))(x)
    assert_close(out, torch.stack([module(x[0]), module(x[1])]).detach())
    assert_close(new, dict(module.named_buffers()))


# -- trees ----------------------------------------------------------------------------------------


class Output(dict):
    """A class that torch's pytrees know, and optree does not; its context is not hashable."""


torch_pytree.register_pytree_node(
    Output,
    lambda x: (list(x.values()), list(x)),
    lambda xs, context: Output(zip(context, xs, strict=True)),
    serialized_type_name="tests.test_modules.Output",
)


def test_classes_that_torch_knows_are_trees() -> None:
    class Net(nn.Linear):
        def forward(self, input: Any) -> Any:
            return {"result": Output(y=super().forward(input["x"]), z=None)}

    module = Net(3, 2)
    apply, params, _ = xf.functional(module)
    run = xf.jit(lambda p, given: apply(p, {}, given)[0])
    x = rand(4, 3)
    for _ in range(2):
        out = run(params, Output(x=x))["result"]
        assert type(out) is Output
        assert out["z"] is None
        assert_close(out["y"], module(Output(x=x))["result"]["y"].detach())
    assert run.cache_info().traces == 1
    grads = xf.grad(lambda given: given["x"].square().sum())(Output(x=x))
    assert type(grads) is Output
    assert_close(grads["x"], 2 * x)
    assert xf.tree.leaves([torch.Size((2, 3))]) == [torch.Size((2, 3))]  # Torch's own do not count.
    assert len(xf.tree.flatten([[1], [2]], lambda t: t == [1])[0]) == 2


# -- errors ---------------------------------------------------------------------------------------


class Lazy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.UninitializedParameter()


@pytest.mark.parametrize(
    ("make", "problem", "hint"),
    [
        (
            lambda: nn.Linear(2, 2, device="meta"),
            "weight of Linear is on the meta device, and has no data",
            r"load it first, or make it with module.to_empty\(device='cpu'\) and initialise it",
        ),
        (
            Lazy,
            "weight of Lazy is not initialised yet",
            "call the module once on an example before xf.functional",
        ),
        (
            lambda: nn.Sequential(nn.DataParallel(nn.Linear(2, 2))),
            "Sequential holds a DataParallel, whose Python code cannot be traced",
            r"pass the module inside \(.module\)",
        ),
        (
            lambda: torch.jit.script(nn.Linear(2, 2)),
            "RecursiveScriptModule, whose Python code cannot be traced",
            "pass the module that it was made from",
        ),
        (
            lambda: torch.compile(nn.Linear(2, 2)),
            "OptimizedModule, whose Python code cannot be traced",
            r"pass the module inside \(._orig_mod\)",
        ),
    ],
)
def test_modules_that_cannot_be_used(make: Any, problem: str, hint: str) -> None:
    module = make()
    with pytest.raises(xf.errors.UnsupportedOpError, match=problem + r"\n.*\nHint: " + hint):
        xf.functional(module)


def test_what_is_no_module() -> None:
    with pytest.raises(
        TypeError, match=r"was given 3, which is not a torch module\n.*\nHint: pass an"
    ):
        xf.functional(3)  # pyright: ignore[reportArgumentType]


def test_other_names() -> None:
    apply, params, buffers = xf.functional(nn.BatchNorm1d(2))
    with pytest.raises(
        xf.errors.TreeMismatchError,
        match=r"the parameters given to functional\(BatchNorm1d\) are not those of the module\n"
        r"  missing: bias\n  unknown: b\n.*\nHint: pass dicts with the names",
    ):
        xf.jit(apply)({"weight": params["weight"], "b": params["bias"]}, buffers, rand(2, 2))
    with pytest.raises(xf.errors.TreeMismatchError, match=r"the parameters given"):
        apply(buffers, params, rand(2, 2))
    with pytest.raises(xf.errors.TreeMismatchError, match=r"the buffers given[\s\S]*running_mean"):
        apply(params, {}, rand(2, 2))


def test_an_output_that_is_no_array() -> None:
    class Net(nn.Linear):
        def forward(self, input: Tensor) -> Any:
            return {"y": super().forward(input), "name": {1, 2}}

    apply, params, buffers = xf.functional(Net(2, 2))
    with pytest.raises(
        TypeError,
        match=r"functional\(Net\) returned \{1, 2\} at output\['name'\][\s\S]*Hint: reg",
    ):
        xf.jit(apply)(params, buffers, rand(2, 2))


def test_dropout_in_training_mode_needs_a_key() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    apply, params, buffers = xf.functional(module)
    with pytest.raises(
        xf.errors.PurityError, match="dropout draws from the global random generator"
    ):
        xf.jit(apply)(params, buffers, rand(2, 2))
    module.eval()
    assert_close(xf.jit(apply)(params, buffers, rand(2, 2))[0], module(rand(2, 2)).detach())


def test_dropout_draws_from_a_key() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
    apply, params, buffers = xf.functional(module)

    def one(params, x, key):
        with xf.random.implicit(key):
            return apply(params, buffers, x)[0]

    def loss(params, x, keys):
        def body(total, key):
            out = one(params, x, key)
            return total + out.sum(), out

        return xf.scan(body, x.new_zeros(()), keys)

    step = xf.jit(xf.value_and_grad(loss, has_aux=True))
    x, keys = rand(8, 3), xf.random.split(xf.random.key(0), 4)
    (value, outs), grads = step(params, x, keys)
    (_, others), _ = step(params, x, xf.random.split(xf.random.key(1), 4))
    assert step.cache_info().traces == 1

    masks = [(o != 0).float() for o in xf.device_get(outs)]
    assert all(not torch.equal(masks[0], m) for m in masks[1:])
    assert not torch.equal(xf.device_get(outs), xf.device_get(others))
    eager = torch.stack([module[0](x) * m * 2 for m in masks])
    eager.sum().backward()
    assert_close(outs, eager.detach())
    assert_close(value, eager.sum().detach())
    assert_close(grads, gradients(module))


# -- torch_xla ------------------------------------------------------------------------------------


def test_torch_xla_replaces_nothing_in_torch(fresh: Server) -> None:
    """Where xfunc loads it. (In this process another test may have been first.)"""
    code = """
import torch, xfunc as xf
before = torch.nn.GRU, torch.nn.utils.clip_grad_norm_
xf.jit(torch.sin)(torch.ones(2))
assert before == (torch.nn.GRU, torch.nn.utils.clip_grad_norm_)
"""
    done = fresh.run(code)
    assert done.returncode == 0, done.stderr


def test_the_gru_of_torch_xla() -> None:
    """It stands in place of torch's where torch_xla came first. Its scan can't be traced."""
    from torch_xla.experimental import gru

    module = nn.modules.GRU(4, 6)
    theirs = gru.GRU(4, 6)
    theirs.load_state_dict(module.state_dict())
    apply, params, buffers = xf.functional(theirs)
    x = rand(3, 2, 4)
    out, _ = xf.jit(apply)(params, buffers, x)
    torch.testing.assert_close(xf.device_get(out), tuple(t.detach() for t in module(x)))

    class Biased(gru.GRU):
        def forward(self, x: Tensor) -> Tensor:
            return x + self.bias_hh_l0.sum()

    apply, params, buffers = xf.functional(own := Biased(4, 6))
    assert_close(xf.jit(apply)(params, buffers, x)[0], own(x).detach())


def test_torch_xla_still_takes_the_biased_variance(device: torch.device) -> None:
    """If not, the replacement of batch_norm in xfunc.torchlib.replacements is no longer needed."""
    module = nn.BatchNorm1d(2, momentum=1.0)
    x = rand(4, 2)
    theirs = copy.deepcopy(module).to(device)
    theirs(x.to(device))
    assert_close(theirs.running_var, x.var(0, correction=0))
