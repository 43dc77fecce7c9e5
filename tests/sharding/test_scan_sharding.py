"""Gradients of scans are divided like what they are gradients of, with nothing said about them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import xfunc as xf
from tests.support.divided import MESH, on
from xfunc.sharding import AbstractMesh, NamedSharding, P, shard_map, sharding_of

LAYERS, BATCH, SEQ, HIDDEN, HEADS, WIDE = 3, 4, 6, 16, 2, 32
IN, OUT = ("fsdp", "tensor"), ("tensor", "fsdp")
SPECS: dict[str, tuple[str, ...]] = {
    "norm1": ("fsdp",), "q": IN, "k": IN, "v": IN, "o": OUT, "norm2": ("fsdp",),
    "gate": IN, "up": IN, "down": OUT, "bias": ("fsdp",),
}  # fmt: skip
Tree = dict[str, torch.Tensor]


@pytest.fixture(autouse=True)
def switch() -> Iterator[None]:
    yield
    xf.config.shard_as_in_scan = True


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, dtype=torch.float64, generator=generator) * 0.3


def lies(x: torch.Tensor) -> tuple[Any, ...] | None:
    found = sharding_of(x)
    return None if found is None else (*found.spec, *(None,) * x.ndim)[: x.ndim]


def layer_shapes(hidden: int, wide: int) -> dict[str, tuple[int, ...]]:
    return {
        "norm1": (hidden,), "q": (hidden, hidden), "k": (hidden, hidden), "v": (hidden, hidden),
        "o": (hidden, hidden), "norm2": (hidden,), "gate": (hidden, wide), "up": (hidden, wide),
        "down": (wide, hidden), "bias": (hidden,),
    }  # fmt: skip


def norm(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * scale


def layer(x: torch.Tensor, w: Tree) -> torch.Tensor:
    h = norm(x, w["norm1"])
    q, k, v = (
        (h @ w[n]).unflatten(-1, (HEADS, h.shape[-1] // HEADS)).transpose(1, 2) for n in "qkv"
    )
    mixed = (q @ k.transpose(-1, -2)).softmax(-1) @ v
    x = x + mixed.transpose(1, 2).flatten(2) @ w["o"]
    h = norm(x, w["norm2"])
    return x + (torch.nn.functional.silu(h @ w["gate"]) * (h @ w["up"])) @ w["down"] + w["bias"]


def decoder_loss(scanned: Callable[..., Any]) -> Callable[[Any, torch.Tensor], torch.Tensor]:
    def loss(weights: Tree, x: torch.Tensor) -> torch.Tensor:
        return (scanned(weights, x) ** 2).mean()

    return loss


def scan_layers(weights: Tree, x: torch.Tensor, **options: Any) -> torch.Tensor:
    return xf.scan(lambda h, w: (layer(h, w), None), x, weights, **options)[0]


def loop_layers(weights: Tree, x: torch.Tensor) -> torch.Tensor:
    for i in range(weights["q"].shape[0]):
        x = layer(x, {n: w[i] for n, w in weights.items()})
    return x


def plain(loss: Callable[..., torch.Tensor], *args: Any) -> Any:
    grad, value = torch.func.grad_and_value(loss)(*args)
    return value, grad


WEIGHTS: Tree = {n: random(LAYERS, *s) for n, s in layer_shapes(HIDDEN, WIDE).items()}
X = random(BATCH, SEQ, HIDDEN)
ON_MESH = xf.device_put(WEIGHTS, {n: on(None, *s) for n, s in SPECS.items()})
X_ON_MESH = xf.device_put(X, on("fsdp", None, "tensor"))
EXPECTED = plain(decoder_loss(loop_layers), WEIGHTS, X)


def check(found: Any, expected: Any) -> None:
    torch.testing.assert_close(xf.device_get(found), expected, rtol=1e-10, atol=1e-12)


VARIANTS: dict[str, Callable[[Tree, torch.Tensor], torch.Tensor]] = {
    "scan": scan_layers,
    "unroll=2": lambda w, x: scan_layers(w, x, unroll=2),
    "unrolled": lambda w, x: scan_layers(w, x, unroll=True),
    "recomputed": lambda w, x: scan_layers(
        w, x, checkpoint_policy=xf.checkpoint_policies.nothing_saveable
    ),
    "checkpoint in the body": lambda w, x: xf.scan(
        lambda h, v: (xf.checkpoint(layer)(h, v), None), x, w
    )[0],
    "jit in the body": lambda w, x: xf.scan(lambda h, v: (xf.jit(layer)(h, v), None), x, w)[0],
    "checkpoint around": lambda w, x: xf.checkpoint(scan_layers)(w, x),
    "fori_loop": lambda w, x: xf.fori_loop(
        0, LAYERS, lambda i, h: layer(h, {n: v[i] for n, v in w.items()}), x
    ),
}


# Of unrolled steps, jaxlib 0.7.1 shards the gradient of a vector over the other axis.
TIED = [
    pytest.param(name, marks=[pytest.mark.torch_xla] * name.startswith("unroll"))
    for name in VARIANTS
]


@pytest.mark.quick(4, seed=0)
@pytest.mark.parametrize("name", TIED)
def test_scan_gradients_are_sharded_like_weights(name: str) -> None:
    step = xf.value_and_grad(decoder_loss(VARIANTS[name]))
    found = step(ON_MESH, X_ON_MESH)
    check(found, EXPECTED)
    for n, g in found[1].items():
        assert lies(g) == (None, *SPECS[n]), n


def test_scan_gradients_without_shard_as_in_scan() -> None:
    """If this fails, XLA divides them by itself, and `scan` need not tie anything."""
    step = xf.value_and_grad(decoder_loss(scan_layers))
    assert lies(step(ON_MESH, X_ON_MESH)[1]["up"]) == (None, *IN)
    xf.config.shard_as_in_scan = False
    off = step(ON_MESH, X_ON_MESH)
    check(off, EXPECTED)
    assert lies(off[1]["up"]) != (None, *IN)
    assert lies(off[1]["bias"]) != (None, "fsdp")
    xf.config.shard_as_in_scan = True
    assert lies(step(ON_MESH, X_ON_MESH)[1]["up"]) == (None, *IN)


def test_shard_as_without_shard_as_in_scan() -> None:
    xf.config.shard_as_in_scan = False
    found = xf.jit(lambda x, y: xf.sharding.shard_as(x, y * 2)[1])(X_ON_MESH, X)
    assert lies(found) == ("fsdp", None, "tensor")


def test_scan_gradient_of_carry() -> None:
    """Nothing but the first carry is divided; the body does not keep it."""

    def loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (xf.scan(lambda c, v: (c + v.sin(), None), x, w)[0] * 2).sum()

    x, w = random(8, 8), random(3, 8)
    of_x, of_w = xf.grad(loss, argnums=(0, 1))(xf.device_put(x, on(*IN)), w)
    check((of_x, of_w), (torch.full((8, 8), 2.0).double(), (w.cos() * 16)))
    assert lies(of_x) == IN


def test_scan_gradient_of_closed_over_weight() -> None:
    def scanned(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return xf.scan(lambda h, _: (torch.tanh(h @ w), None), x, None, length=3)[0]

    def looped(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = torch.tanh(x @ w)
        return x

    w, x = random(HIDDEN, HIDDEN), X.flatten(0, 1)
    found = xf.grad(decoder_loss(scanned))(xf.device_put(w, on(*IN)), xf.device_put(x, on("fsdp")))
    check(found, plain(decoder_loss(looped), w, x)[1])
    assert lies(found) == IN


def test_scan_gradient_of_shared_weights() -> None:
    """The same weights as xs, closed over, and outside the loop."""

    def loss(run: Callable[..., Any]) -> Callable[..., torch.Tensor]:
        def f(w: Tree, x: torch.Tensor) -> torch.Tensor:
            h = run(w, x @ w["embed"])
            return (h @ w["embed"].T).logsumexp(-1).mean()

        return f

    def scanned(w: Tree, x: torch.Tensor) -> torch.Tensor:
        def body(h: torch.Tensor, v: torch.Tensor) -> Any:
            return torch.tanh(h @ v @ w["stack"][0]) + h @ w["embed"].T @ w["embed"], None

        return xf.scan(body, x, w["stack"])[0]

    def looped(w: Tree, x: torch.Tensor) -> torch.Tensor:
        for v in w["stack"]:
            x = torch.tanh(x @ v @ w["stack"][0]) + x @ w["embed"].T @ w["embed"]
        return x

    w, x = {"stack": random(LAYERS, 16, 16), "embed": random(32, 16)}, random(8, 32)
    placed = xf.device_put(w, {"stack": on(None, *IN), "embed": on(*OUT)})
    found = xf.value_and_grad(loss(scanned))(placed, xf.device_put(x, on("fsdp")))
    check(found, plain(loss(looped), w, x))
    assert lies(found[1]["stack"]) == (None, *IN)
    assert lies(found[1]["embed"]) == OUT


def test_scan_nested_gradients() -> None:
    def scanned(w: Tree, x: torch.Tensor) -> torch.Tensor:
        return xf.scan(lambda h, v: (scan_layers(v, h), None), x, w)[0]

    def looped(w: Tree, x: torch.Tensor) -> torch.Tensor:
        return loop_layers({n: v.flatten(0, 1) for n, v in w.items()}, x)

    w = {n: torch.stack([v, v.sin()]) for n, v in WEIGHTS.items()}
    placed = xf.device_put(w, {n: on(None, None, *s) for n, s in SPECS.items()})
    found = xf.value_and_grad(decoder_loss(scanned))(placed, X_ON_MESH)
    check(found, plain(decoder_loss(looped), w, X))
    for n, g in found[1].items():
        assert lies(g) == (None, None, *SPECS[n]), n


def test_map_gradients() -> None:
    def loss(w: torch.Tensor, xs: torch.Tensor) -> torch.Tensor:
        return xf.map(lambda x: torch.tanh(x @ w) @ w.T, xs).pow(2).sum()

    def looped(w: torch.Tensor, xs: torch.Tensor) -> torch.Tensor:
        return (torch.tanh(xs @ w) @ w.T).pow(2).sum()

    w, xs = random(16, 16), random(5, 8, 16)
    args = xf.device_put((w, xs), (on(*IN), on(None, "fsdp", "tensor")))
    found = xf.grad(loss, argnums=(0, 1))(*args)
    check(found, torch.func.grad(looped, argnums=(0, 1))(w, xs))
    assert lies(found[0]) == IN
    assert lies(found[1]) == (None, "fsdp", "tensor")


def test_scan_on_arguments_sharded_differently() -> None:
    """Pairs of one shape in one program, which are no group together."""

    def loss(weights: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([decoder_loss(scan_layers)(w, x) for w in weights]).sum()

    def looped(weights: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([decoder_loss(loop_layers)(w, x) for w in weights]).sum()

    other = {n: v.sin() for n, v in WEIGHTS.items()}
    turned = {n: s[::-1] if len(s) == 2 else ("tensor",) for n, s in SPECS.items()}
    placed = xf.device_put(other, {n: on(None, *s) for n, s in turned.items()})
    found = xf.value_and_grad(loss)([ON_MESH, placed], X_ON_MESH)
    check(found, plain(looped, [WEIGHTS, other], X))
    for n in SPECS:
        assert lies(found[1][0][n]) == (None, *SPECS[n]), n
        assert lies(found[1][1][n]) == (None, *turned[n]), n


def test_scan_leaves_of_one_shape_sharded_differently() -> None:
    def scanned(w: Tree, x: torch.Tensor) -> torch.Tensor:
        body = lambda h, v: (torch.tanh(h @ v["a"]) @ v["b"], None)  # noqa: E731
        return xf.scan(body, x, w)[0]

    def looped(w: Tree, x: torch.Tensor) -> torch.Tensor:
        for a, b in zip(w["a"], w["b"], strict=True):
            x = torch.tanh(x @ a) @ b
        return x

    w, x = {"a": random(3, 16, 16), "b": random(3, 16, 16, seed=1)}, random(8, 16)
    specs = {"a": on(None, *IN), "b": on(None, None, OUT)}
    found = xf.grad(decoder_loss(scanned))(xf.device_put(w, specs), x)
    check(found, plain(decoder_loss(looped), w, x)[1])
    assert lies(found["a"]) == (None, *IN)
    assert lies(found["b"]) == (None, None, OUT)


def test_scan_second_order_gradients() -> None:
    def along(loss: Any, grad: Any, w: Tree, x: torch.Tensor) -> Any:
        return grad(lambda w: sum((g * v).sum() for g, v in zip(
            grad(loss)(w, x).values(), w.values(), strict=True)))(w)  # fmt: skip

    found = xf.jit(lambda w, x: along(decoder_loss(scan_layers), xf.grad, w, x))(ON_MESH, X_ON_MESH)
    want = along(decoder_loss(loop_layers), torch.func.grad, WEIGHTS, X)
    torch.testing.assert_close(xf.device_get(found), want, rtol=1e-9, atol=1e-10)
    for n, g in found.items():
        assert lies(g) == (None, *SPECS[n]), n


def test_scan_forward_over_reverse() -> None:
    grad = xf.grad(decoder_loss(scan_layers))
    out, dots = xf.jvp(lambda w: grad(w, X_ON_MESH), (ON_MESH,), (ON_MESH,))
    plain_grad = torch.func.grad(decoder_loss(loop_layers))
    want = torch.func.jvp(lambda w: plain_grad(w, X), (WEIGHTS,), (WEIGHTS,))
    torch.testing.assert_close(xf.device_get((out, dots)), want, rtol=1e-9, atol=1e-10)
    assert lies(out["up"]) == (None, *IN)


def test_scan_gradients_under_vmap() -> None:
    """Gradients under vmap have an axis more than the weights: they are not tied."""
    found = xf.vmap(xf.grad(decoder_loss(scan_layers)), (None, 0))(ON_MESH, X[:, None])
    want = torch.func.vmap(torch.func.grad(decoder_loss(loop_layers)), (None, 0))(
        WEIGHTS, X[:, None]
    )
    check(found, want)


def test_scan_gradient_of_vmap() -> None:
    def over(run: Any, vmap: Any) -> Any:
        return lambda w, x: decoder_loss(lambda w, x: vmap(run, (None, 0))(w, x[:, None]))(w, x)

    found = xf.grad(over(scan_layers, xf.vmap))(ON_MESH, X_ON_MESH)
    check(found, EXPECTED[1])
    for n, g in found.items():
        assert lies(g) == (None, *SPECS[n]), n


def test_scan_gradient_with_integer_leaves() -> None:
    def loss(w: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        def body(c: Any, x: Any) -> Any:
            h, count = c
            return (torch.tanh(h @ x[0]) * x[1], count + x[1]), h.sum()

        (h, _), ys = xf.scan(body, (torch.ones(8, 8).double(), 0), (w, n))
        return (h**2).sum() + ys.sum()

    def looped(w: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        h, total = torch.ones(8, 8).double(), torch.zeros(()).double()
        for a, k in zip(w, n, strict=True):
            total = total + h.sum()
            h = torch.tanh(h @ a) * k
        return (h**2).sum() + total

    w, n = random(3, 8, 8), torch.tensor([1, 2, 3])
    found = xf.grad(loss)(xf.device_put(w, on(None, *IN)), n)
    check(found, torch.func.grad(looped)(w, n))
    assert lies(found) == (None, *IN)


def sharded(shape: tuple[int, ...], mesh: Any, *spec: Any) -> xf.ShapeDtypeStruct:
    return xf.ShapeDtypeStruct(shape, torch.float32, sharding=NamedSharding(mesh, P(*spec)))


def test_scan_of_126_layers_on_a_pod() -> None:
    mesh = AbstractMesh((64, 4), IN)
    shapes = layer_shapes(256, 512)
    weights = {n: sharded((126, *s), mesh, None, *SPECS[n]) for n, s in shapes.items()}
    x = sharded((64, 8, 256), mesh, "fsdp", None, "tensor")
    text = xf.jit(xf.value_and_grad(decoder_loss(scan_layers))).lower(weights, x).as_text()
    numbers = re.findall(r"unknown shard_as (\d+)", text)
    assert sorted(numbers) == sorted([*map(str, range(1, 12))] * 2)  # ten weights, and the carry


def test_scan_without_mesh_has_no_ties() -> None:
    step = xf.jit(xf.value_and_grad(decoder_loss(scan_layers)))
    assert "Sharding" not in step.lower(WEIGHTS, X).as_text()
    check(step(WEIGHTS, X), EXPECTED)


def test_scan_in_manual_region() -> None:
    def local(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return xf.scan(lambda h, v: (torch.tanh(h @ v), None), x, w)[0]

    def looped(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        for v in w:
            x = torch.tanh(x @ v)
        return x

    w, x = random(3, 16, 16), random(8, 16)
    mapped = shard_map(local, MESH, (P(), P("fsdp")), P("fsdp"))
    found = xf.grad(decoder_loss(mapped))(w, x)
    check(found, plain(decoder_loss(looped), w, x)[1])


@pytest.mark.parametrize("policy", [None, xf.checkpoint_policies.nothing_saveable])
def test_scan_keeps_no_residuals_for_ties(policy: Any) -> None:
    """The inner scan's backward pass has no use for its xs: the outer one does not stack them."""

    def layer(h: torch.Tensor, w: torch.Tensor) -> Any:
        total = xf.scan(lambda c, v: (c + v, None), torch.zeros(7).double(), h @ w)[0]
        return h + total[:5, None], None

    def loss(w: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        return xf.scan(layer, h, w, checkpoint_policy=policy)[0].sum()

    w, h = random(3, 4, 7), random(5, 4)
    text = xf.jit(xf.grad(loss)).lower(w, h).as_text()
    assert "f64[3,5,4]" in text  # the carries
    assert "f64[3,5,7]" not in text
    assert text.count(" dot(") == 3  # forwards, and for the gradients of w and h
