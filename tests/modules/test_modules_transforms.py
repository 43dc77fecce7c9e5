"""`xf.functional` within transforms, with keys for dropout, and with torch's own trees."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as torch_pytree

import xfunc as xf
from tests.modules.common import assert_close, gradients, rand

pytestmark = pytest.mark.usefixtures("seeded")


# -- transforms -----------------------------------------------------------------------------------


@pytest.fixture
def net() -> Any:
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    return module, *xf.functional(module)[:2], rand(5, 3).double()


def test_vmap_over_module_parameters(net: Any) -> None:
    module, apply, params, x = net
    many = xf.tree.map(lambda p: torch.stack([p, p * 2, p * 3]), params)
    out = xf.vmap(lambda p: apply(p, {}, x)[0])(many)
    for i in range(3):
        scaled = copy.deepcopy(module)
        with torch.no_grad():
            for p in scaled.parameters():
                p.mul_(i + 1)
        torch.testing.assert_close(out[i].cpu(), scaled(x).detach())


def test_vmap_grad_of_module_per_example(net: Any) -> None:
    module, apply, params, x = net
    grads = xf.vmap(xf.grad(lambda p, x: apply(p, {}, x)[0].square().sum()), in_axes=(None, 0))
    found = grads(params, x)
    for i in range(len(x)):
        module.zero_grad()
        module(x[i]).square().sum().backward()
        torch.testing.assert_close(xf.device_get(found["0.weight"][i]), module[0].weight.grad)


def test_grad_of_grad_of_module_in_scan(net: Any) -> None:
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


def test_jvp_of_module(net: Any) -> None:
    module, apply, params, x = net
    out, tangent = xf.jvp(lambda p: apply(p, {}, x)[0], (params,), (params,))
    expected = torch.func.jvp(
        lambda p: torch.func.functional_call(module, p, x),
        (dict(module.named_parameters()),),
        (dict(module.named_parameters()),),
    )
    torch.testing.assert_close(xf.device_get((out, tangent)), tuple(t.detach() for t in expected))


def test_vmap_of_module_batches_buffers() -> None:
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


def test_torch_pytree_classes_are_trees() -> None:
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


def test_module_dropout_draws_from_implicit_key() -> None:
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
