"""Policies of checkpoint and scan: kept values, recomputed operations, and equal gradients."""

import functools
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import xfunc as xf
from xfunc import checkpoint_policies as cp

torch.manual_seed(0)
X, W = torch.randn(4, 8), torch.randn(3, 8, 8)
THREE: Any = 3  # no string


def block(x, w):
    h = xf.checkpoint_name(torch.tanh(x @ w[0]), "h")
    g = xf.checkpoint_name(torch.sin(h @ w[1]), "g")
    return xf.jit(lambda a: torch.tanh(a @ w[2]))(g)  # a policy looks into nested functions


def names(*n):
    return cp.save_only_these_names(*n)


OFFLOAD = cp.save_and_offload_only_these_names(
    names_which_can_be_saved=["h"], names_which_can_be_offloaded=["g"]
)
# Policy, and how often dots, tanh and sine occur: 9, 2 and 1 are those of gradients alone.
POLICIES = {
    "everything": (cp.everything_saveable, (9, 2, 1)),
    "nothing": (cp.nothing_saveable, (12, 4, 2)),
    "dots": (cp.dots_saveable, (9, 4, 2)),
    "dots with no batch dims": (cp.dots_with_no_batch_dims_saveable, (9, 4, 2)),
    "h": (names("h"), (11, 3, 2)),
    "g": (names("g"), (12, 4, 1)),
    "h and g": (names("h", "g"), (11, 3, 1)),
    "no such name": (names("k"), (12, 4, 2)),
    "offload": (OFFLOAD, (11, 3, 1)),
    "offload dots": (cp.offload_dot_with_no_batch_dims, (9, 4, 2)),
    "offload dots, called": (
        cp.offload_dot_with_no_batch_dims("device", "pinned_host"),
        (9, 4, 2),
    ),
    "any name but h": (cp.save_any_names_but_these("h"), (12, 4, 1)),
    "any name": (cp.save_any_names_but_these(), (11, 3, 1)),
    "anything except g": (cp.save_anything_except_these_names("g"), (9, 2, 1)),
    "h, and g": (cp.save_from_both_policies(names("h"), names("g")), (11, 3, 1)),
    "dots, and h": (cp.save_from_both_policies(cp.checkpoint_dots, names("h")), (9, 3, 2)),
    "min cut": (cp.min_cut(), None),
    "a budget": (cp.min_cut(800), None),
    "a user's function": (lambda i: i.opcode in ("tanh", "sine"), (10, 2, 1)),
}


def checkpointed(policy):
    return lambda x, w: xf.checkpoint(block, policy=policy)(x, w).square().sum()


def scanned(policy):
    def f(x, w):
        step = lambda h, _: (block(h, w), None)  # noqa: E731
        return xf.scan(step, x, length=3, checkpoint_policy=policy)[0].square().sum()

    return f


def count(text, *opcodes):
    return tuple(len(re.findall(rf" {o}\(", text)) for o in opcodes)


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize("make", [checkpointed, scanned])
@pytest.mark.parametrize("name", POLICIES)
def test_checkpoint_policy_recomputed_operations(name, make):
    policy, expected = POLICIES[name]
    text = xf.jit(xf.grad(make(policy), argnums=(0, 1))).lower(X, W).as_text()
    found = count(text, "dot", "tanh", "sine")
    if expected is not None:
        assert found == expected
    assert "xfunc_name" not in text


TRANSFORMS = {
    "grad": lambda f: xf.grad(f, argnums=(0, 1)),
    "grad of jit": lambda f: xf.grad(xf.jit(f), argnums=(0, 1)),
    "second order": lambda f: xf.grad(lambda x, w: xf.grad(f, argnums=1)(x, w).square().sum()),
    "vmap": lambda f: lambda x, w: xf.vmap(xf.grad(f, argnums=1), in_axes=(0, None))(x[:, None], w),
    "jvp of grad": lambda f: lambda x, w: xf.jvp(lambda v: xf.grad(f)(v, w), (x,), (x,))[1],
    "nested": lambda f: xf.grad(lambda x, w: xf.checkpoint(f, policy=names("h"))(x, w)),
}


def _assert_equal_but_for_fusion(got, want, name):
    """Up to how XLA contracts products and sums in what it fuses."""
    limit = 64 * torch.finfo(want.dtype).eps * float(want.abs().max())
    torch.testing.assert_close(got, want, rtol=0.0, atol=limit, msg=name)


@pytest.mark.sample(6, seed=0)
@pytest.mark.parametrize("make", [checkpointed, scanned])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_checkpoint_policy_gradients_equal(transform, make):
    found = {}
    for name, (policy, _) in POLICIES.items():
        got = xf.jit(TRANSFORMS[transform](make(policy)))(X.double(), W.double())
        found[name] = [t.cpu() for t in xf.tree.leaves(got)]
    for name, got in found.items():
        for a, b in zip(got, found["everything"], strict=True):
            _assert_equal_but_for_fusion(a, b, name)


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize("name", POLICIES)
def test_checkpoint_policy_with_random_keys(name):
    policy, _ = POLICIES[name]

    def dropout(h, key):
        mask = xf.random.bernoulli(key, 0.5, h.shape)
        return torch.where(mask, torch.tanh(h @ W[0].to(h.device)), 0.0)

    def f(x, keys, policy):
        step = lambda h, key: (dropout(h, key), None)  # noqa: E731
        return xf.scan(step, x, keys, checkpoint_policy=policy)[0].sum()

    keys = xf.random.split(xf.random.key(0), 3)
    got = xf.grad(lambda x: f(x, keys, policy))(X)
    want = xf.grad(lambda x: f(x, keys, cp.everything_saveable))(X)
    _assert_equal_but_for_fusion(got.cpu(), want.cpu(), name)


def test_offload_policy_places_values_on_host():
    f = xf.jit(xf.grad(scanned(OFFLOAD), argnums=(0, 1)))
    text = f.lower(X, W).as_text()
    placed = re.findall(r'annotate_device_placement.*_xla_buffer_placement="?(\w+)', text)
    assert sorted(placed) == ["device", "pinned_host"]
    assert f(X, W)[0].shape == X.shape  # The CPU has one memory: there they stay where they are.


def test_offload_policy_of_named_scan_carry():
    def layer(h, w):
        h = xf.checkpoint_name(h, "layer_input")
        return torch.tanh(torch.tanh(h @ w) @ w), None

    policy = cp.save_and_offload_only_these_names(
        names_which_can_be_saved=[], names_which_can_be_offloaded=["layer_input"]
    )
    f = xf.jit(xf.grad(lambda x: xf.scan(layer, x, W, checkpoint_policy=policy)[0].sum()))
    text = f.lower(X).as_text()
    assert text.count('_xla_buffer_placement="pinned_host"') == 1
    plain = xf.grad(lambda x: xf.scan(layer, x, W)[0].sum())
    assert torch.equal(f(X), plain(X))


def test_checkpoint_name_of_reshape_is_saved():
    def f(x):
        y = xf.checkpoint_name(torch.sin(x).reshape(8, 4).T, "y")
        return torch.exp(y * y).sum()

    for policy, sines in ((names("y"), 1), (names("z"), 2)):
        text = xf.jit(xf.value_and_grad(xf.checkpoint(f, policy=policy))).lower(X).as_text()
        assert count(text, "sine") == (sines,)


@pytest.mark.one_device
def test_checkpoint_recomputation_survives_compilation():
    """The barrier keeps XLA from merging it with the first computation."""

    def f(x, w):
        return torch.tanh(torch.tanh(torch.tanh(x @ w) @ w) @ w).sum()

    w = W[0]
    for policy, tanhs in ((cp.everything_saveable, 3), (cp.nothing_saveable, 6)):
        g = xf.jit(xf.value_and_grad(xf.checkpoint(f, policy=policy), argnums=1))
        text = g.lower(X, w).compile().as_text()
        assert text is not None
        assert text.count(" tanh(") == tanhs

    def loop(x, w):  # Of one step: it lies in one computation with its backward pass.
        step = lambda h, v: (torch.tanh(torch.tanh(h @ v) @ v), None)  # noqa: E731
        return xf.scan(step, x, w[None], checkpoint_policy=cp.nothing_saveable)[0].sum()

    text = xf.jit(xf.value_and_grad(loop, argnums=1)).lower(X, w).compile().as_text()
    assert text is not None
    assert text.count(" tanh(") == 4


def test_checkpoint_policies_compare_by_value():
    assert names("a", "b") == names("b", "a")
    assert hash(names("a")) == hash(names("a"))
    assert cp.min_cut(5) == cp.min_cut(5) != cp.min_cut(6)
    assert cp.offload_dot_with_no_batch_dims() == cp.offload_dot_with_no_batch_dims("device")
    f = xf.jit(lambda x: xf.grad(checkpointed(names("h")))(x, W))
    for _ in range(3):
        f(X)
        xf.jit(lambda x: xf.grad(checkpointed(names("h")))(x, W))(X)
    assert f.cache_info().traces == 1


def test_min_cut_without_budget_recomputes_no_dot():
    text = xf.jit(xf.grad(scanned(cp.min_cut()), argnums=(0, 1))).lower(X, W).as_text()
    assert count(text, "dot") == (9,)


def test_min_cut_budgets():
    f = scanned(cp.min_cut(383))
    for g in (
        xf.grad(f),
        xf.vmap(xf.grad(f), (0, None)),
        xf.grad(lambda x, w: xf.grad(f)(x, w).sum()),
    ):
        x = X[None] if g.__name__.startswith("vmap") else X
        with pytest.raises(ValueError, match=r"at least 384 \(3 steps of 128\)") as caught:
            g(x, W)
        assert not getattr(caught.value, "__notes__", ())
    counts = [
        count(xf.jit(xf.grad(scanned(cp.min_cut(b)), argnums=(0, 1))).lower(X, W).as_text(), "dot")
        for b in (384, 768, 1152, 10_000)
    ]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[-1] == (9,)
    wrongs: list[Any] = [-1, 1.5, True, "1GB"]
    for wrong in wrongs:
        with pytest.raises(ValueError, match="min_cut was given budget_bytes="):
            cp.min_cut(wrong)


def test_checkpoint_policies_invalid_arguments_raise():
    with pytest.raises(ValueError, match="'a' both to be saved and to be offloaded"):
        cp.save_and_offload_only_these_names(
            names_which_can_be_saved=["a"], names_which_can_be_offloaded=["a", "b"]
        )
    with pytest.raises(ValueError, match="offloaded from 'host' to 'pinned_host'"):
        cp.offload_dot_with_no_batch_dims("host")
    with pytest.raises(TypeError, match="save_only_these_names was given 3 as a name"):
        cp.save_only_these_names(THREE)
    with pytest.raises(TypeError, match="checkpoint_name was given 3 as name"):
        xf.checkpoint_name(X, THREE)
    with pytest.raises(TypeError, match="checkpoint_name was given 'x'"):
        xf.checkpoint_name(["x"], "name")


def test_checkpoint_name_outside_of_checkpoint():
    tree = {"a": X, "b": 2.0}
    assert torch.equal(xf.checkpoint_name(tree, "t")["a"], X)
    f = xf.jit(lambda x: xf.checkpoint_name({"a": x, "n": torch.arange(3)}, "t"))
    assert torch.equal(f(X)["a"].cpu(), X)
    assert "xfunc_name" not in f.lower(X).as_text()
    with xf.disable_jit():
        assert torch.equal(xf.grad(lambda x: xf.checkpoint_name(x, "t").square().sum())(X), 2 * X)
    torch.testing.assert_close(xf.jvp(f, (X,), (X,))[1]["a"].cpu(), X)
    assert xf.vmap(lambda x: xf.checkpoint_name(x, "t"))(X).shape == X.shape


def test_name_of_constant_is_not_in_program():
    """A policy moves the name to the constant itself, which nothing else changes."""

    def f(x):
        return (x.sin() * xf.checkpoint_name(torch.full((), 2.0), "c")).sum()

    named = xf.checkpoint(f, policy=cp.save_only_these_names("c"))
    lowered = xf.jit(xf.grad(named)).lower(X)
    assert "xfunc_name" not in lowered.as_text()


@pytest.mark.parametrize("name", POLICIES)
def test_checkpoint_policy_in_nested_scans(name):
    policy, _ = POLICIES[name]

    def f(x, policy):
        def inner(h, w):
            return torch.tanh(h @ w), None

        def outer(h, w):
            h, _ = xf.scan(inner, h, w, checkpoint_policy=policy)
            return xf.checkpoint_name(torch.sin(h), "h"), None

        w = torch.stack([W, W + 1])
        return xf.scan(outer, x, w, checkpoint_policy=policy)[0].square().sum()

    if policy == cp.min_cut(400):
        policy = cp.min_cut(10_000)
    got = xf.grad(lambda x: f(x, policy))(X)
    assert torch.equal(got, xf.grad(lambda x: f(x, cp.everything_saveable))(X))


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize("nested", [False, True])
def test_scan_custom_vjp_saved_arguments_kept_once(nested: bool) -> None:
    """In a loop they would be stacked beside what they are slices of."""

    @xf.custom_vjp
    def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x @ w

    product.defvjp(
        lambda x, w: (x @ w, (x, w)),
        lambda kept, ct: (ct @ kept[1].mT, kept[0].mT @ ct),
    )

    def loss(
        multiply: Callable[..., torch.Tensor], weights: torch.Tensor, x: torch.Tensor
    ) -> torch.Tensor:
        return xf.scan(lambda h, w: (torch.tanh(multiply(h, w)), None), x, weights)[0].sum()

    g = torch.Generator().manual_seed(0)
    weights, x = (torch.randn(s, dtype=torch.float64, generator=g) for s in ((7, 64, 64), (2, 64)))
    rule = xf.jit(product) if nested else product
    found, plain = (
        xf.jit(xf.grad(functools.partial(loss, f))).lower(weights, x) for f in (rule, torch.matmul)
    )
    assert found.as_text().count("f64[7,64,64]") == plain.as_text().count("f64[7,64,64]")
    sizes: list[Any] = [c.compile().memory_analysis().temp_size_in_bytes for c in (found, plain)]
    assert sizes[0] <= sizes[1] < weights.nbytes

    def eager(weights: torch.Tensor) -> torch.Tensor:
        h = x
        for w in weights:
            h = torch.tanh(h @ w)
        return h.sum()

    torch.testing.assert_close(found.compile()(weights, x).cpu(), torch.func.grad(eager)(weights))


def test_policy_that_is_no_function_is_refused() -> None:
    said = r"policy was given 3(.|\n)*Hint: give a function of a node"
    with pytest.raises(TypeError, match=rf"checkpoint's {said}"):
        xf.checkpoint(torch.sin, policy=3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match=rf"scan's checkpoint_{said}"):
        xf.scan(lambda c, x: (c, x), torch.ones(2), torch.ones(2), checkpoint_policy=3)  # pyright: ignore[reportArgumentType, reportCallIssue]
