import pytest
import torch
import torch.nn.functional as F

import xfunc as xf
from xfunc.symbolic.interpolation import NoFit, fit
from xfunc.symbolic.polynomial import Polynomial
from xfunc.symbolic.sample_sizes import probes
from xfunc.symbolic.shape_domain import Range, ShapeDomain

pytestmark = pytest.mark.quick

B, S = Polynomial.symbol("B"), Polynomial.symbol("S")


def struct(*shape, dtype=torch.float32):
    return xf.ShapeDtypeStruct(shape, dtype)


def traced(f, *avals):
    return lambda env: xf.make_hlo(f)(*(a(env) for a in avals))


def tokens(env):
    return struct(env["B"], env["S"], 8)


BOX = ShapeDomain({"B": Range(1, 64), "S": Range(1, 512)})


def model(x):
    h = torch.softmax(x @ x.transpose(1, 2) / 8**0.5, -1) @ x
    return (F.pad(h[:, :-1], (0, 0, 2, 0)) ** 2).mean() + h.reshape(-1, 8)[1:].sum()


def test_fit_gradient_at_all_sizes():
    symbolic = fit(traced(xf.grad(model), tokens), BOX)
    for env in ({"B": 2, "S": 3}, {"B": 13, "S": 29}, {"B": 4, "S": 400}):
        module = xf.make_hlo(xf.grad(model))(tokens(env))
        again = symbolic.at(env, module)
        for c in module.computations:
            for i in c.instructions:
                assert again.shape(i).at(env) == i.shape
                size = again.shape(i).bytes
                assert (size if isinstance(size, int) else size.at(env)) == i.bytes
    found = {str(symbolic.shape(i)) for i in symbolic.module.entry.instructions}
    assert {"f32[B,S,8]", "f32[B,S,S]", "f32[B*S,8]", "f32[B,S-1,8]"} <= found


@pytest.mark.parametrize(
    ("f", "literal"),
    [
        (lambda x: x.mean((0, 1)), "B*S"),
        (lambda x: x.sum() * (1 / (x.shape[0] * x.shape[1])), "1/(B*S)"),
        (lambda x: x / x.shape[1] ** 0.5, "sqrt(S)"),
        (lambda x: x * x.shape[1] ** -0.5, "sqrt(1/S)"),
        (lambda x: x * (x.shape[1] - 1) / 3, "S-1"),
        (lambda x: x * ((x.shape[1] - 1) / x.shape[0]), "(S-1)/B"),
        (lambda x: x.sum() * ((x.shape[1] - 1) / 3), "S/3-1/3"),
        (lambda x: x + x.shape[1] ** 2, "S^2"),
    ],
)
def test_fit_literals(f, literal):
    symbolic = fit(traced(f, tokens), BOX)
    found = [symbolic.literal(i) for i in symbolic.module.entry.instructions]
    assert literal in map(str, found)


def test_fit_non_polynomial_raises():
    with pytest.raises(NoFit, match="which is not a polynomial") as caught:
        fit(traced(lambda x: x[:, : (x.shape[1] + 1) // 2] * 2, tokens), BOX)
    assert not caught.value.other_program
    with pytest.raises(NoFit, match="no ratio of sizes"):
        fit(traced(lambda x: x * 1.01 ** x.shape[1], tokens), BOX)


def test_fit_other_program_raises():
    with pytest.raises(NoFit, match="another program for other sizes") as caught:
        fit(traced(lambda x: x.sin() if x.shape[1] % 2 else x.cos(), tokens), BOX)
    assert caught.value.other_program
    symbolic = fit(traced(lambda x: x.sin() if x.shape[1] < 99 else x.cos(), tokens), BOX)
    env = {"B": 2, "S": 100}
    with pytest.raises(NoFit, match="another program"):
        symbolic.at(env, xf.make_hlo(lambda x: x.cos())(tokens(env)))


@pytest.mark.parametrize(
    "ranges",
    [
        {"S": Range()},
        {"S": Range(1, 8)},
        {"B": Range(1, 8), "S": Range(1, 1024)},
        {"A": Range(1, 16), "B": Range(1, 16), "S": Range(8, 4096, 8)},
    ],
)
@pytest.mark.parametrize("highest", [1, 2])
def test_probes_of_ranges(ranges, highest):
    found = probes(ShapeDomain(ranges), highest)
    assert found is not None
    envs, basis = found
    assert len(envs) == len(basis) + 1
    sizes = {name: {e[name] for e in envs} for name in ranges}
    for name, r in ranges.items():
        assert all(n in r and n > 1 for n in sizes[name])
        for other in ranges.keys() - {name}:
            assert sizes[name].isdisjoint(sizes[other])


def test_probes_too_few_sizes():
    assert probes(ShapeDomain({"S": Range(1, 2)})) is None
    with pytest.raises(NoFit, match="S may have too few sizes"):
        fit(lambda env: xf.make_hlo(torch.sin)(struct(env["S"])), ShapeDomain({"S": Range(3, 3)}))


@pytest.mark.parametrize("low", [1, 4, 16, 64])
@pytest.mark.parametrize("others", [{}, {"B": Range(1, 8)}, {"B": Range(16, 64)}])
def test_probes_even_and_odd_uncommon_sizes(low, others):
    found = probes(ShapeDomain({**others, "S": Range(low, 512)}), 2)
    assert found is not None
    sizes = [env["S"] for env in found[0]]
    assert {s % 2 for s in sizes} == {0, 1}
    assert all(s % 4 for s in sizes)
