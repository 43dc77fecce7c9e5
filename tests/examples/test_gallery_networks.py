"""Networks of the gallery, against torch's modules and dense computations."""

from __future__ import annotations

import torch

import xfunc as xf
from examples.gallery import convnet, graph_network, lora, lstm
from examples.gallery._digits import SHAPES, digits
from tests.support.gallery import Run


def test_digits_are_the_shapes_somewhere() -> None:
    images, labels = xf.device_get(digits(xf.random.key(0), 50))
    assert set(labels.tolist()) == set(range(10))
    for image, label in zip(images, labels.tolist(), strict=True):
        rows, columns = image.nonzero().T
        drawn = image[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
        rows, columns = SHAPES[label].nonzero().T
        shape = SHAPES[label][rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
        assert torch.equal(drawn, shape)


def test_convnet_learns_and_equals_the_module_with_its_statistics(run: Run) -> None:
    result = run(convnet)
    assert result.accuracy > 0.9  # 0.1 by chance
    assert not result.module.training
    with torch.no_grad():
        want = result.module(result.images)
    torch.testing.assert_close(result.logits, want, rtol=1e-3, atol=1e-3)
    assert result.module[1].num_batches_tracked == 150


def test_lstm_learns_the_parity(run: Run) -> None:
    result = run(lstm)
    assert result.accuracy > 0.98  # 0.5 by chance
    assert result.accuracy_of_longer > 0.9


def test_lstm_with_masks_equals_torch_on_packed_sequences() -> None:
    params = xf.tree.map(lambda t: t.cpu().double(), lstm.init(xf.random.key(0), 3, 5, 2))
    x, lengths = torch.randn(7, 4, 3, dtype=torch.float64), torch.tensor([7, 1, 4, 6])
    module = torch.nn.LSTM(3, 5, dtype=torch.float64)
    weights = (params["into"], params["again"], params["bias"], torch.zeros_like(params["bias"]))
    for parameter, weight in zip(module.parameters(), weights, strict=True):
        parameter.data = weight.requires_grad_()
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
    want = module(packed)[1][0][0]
    torch.testing.assert_close(lstm.last_hidden(params, x, lengths).cpu(), want.detach())

    names = ["into", "again", "bias"]
    wanted = torch.autograd.grad(want.sin().sum(), [*module.parameters()][:3])
    grads = xf.grad(lambda p: lstm.last_hidden(p, x, lengths).sin().sum())(
        xf.tree.map(torch.detach, params)
    )
    torch.testing.assert_close([grads[n].cpu() for n in names], list(wanted))


def test_graph_network_tells_the_sides(run: Run) -> None:
    assert run(graph_network).accuracy > 0.9  # 0.5 by chance


def test_graph_network_equals_dense_computation() -> None:
    graph, _ = graph_network.karate_club()
    params = [torch.randn(3, 4, dtype=torch.float64), torch.randn(4, 2, dtype=torch.float64)]
    features = torch.randn(graph.nodes, 3, dtype=torch.float64)

    def dense(params: list[torch.Tensor]) -> torch.Tensor:
        matrix = torch.eye(graph.nodes, dtype=torch.float64)
        matrix[graph.receivers, graph.senders] = 1
        scale = matrix.sum(1).rsqrt()
        matrix = scale[:, None] * matrix * scale
        return matrix @ torch.tanh(matrix @ features @ params[0]) @ params[1]

    def sparse(params: list[torch.Tensor]) -> torch.Tensor:
        return graph_network.network(params, graph, features)

    torch.testing.assert_close(sparse(params).cpu(), dense(params))
    got = xf.device_get(xf.grad(lambda p: sparse(p).sin().sum())(params))
    torch.testing.assert_close(got, torch.func.grad(lambda p: dense(p).sin().sum())(params))


def test_lora_leaves_the_model_alone_and_merges_into_it(run: Run) -> None:
    result = run(lora)
    assert result.losses[-1] < result.losses[0] - 1
    own = dict(result.model.named_parameters())
    for name, weight in result.weights.items():
        assert torch.equal(weight, own[name].detach())
    assert len(result.adapters) == 14  # seven projections in each of two layers
    merged = lora.merge(result.weights, result.adapters)
    changed = {name for name in merged if not torch.equal(merged[name], result.weights[name])}
    assert changed == set(result.adapters)

    tokens = torch.arange(10)[None]
    apply, _, buffers = xf.functional(result.model)
    got = apply(merged, buffers, input_ids=tokens, use_cache=False)[0].logits
    result.model.load_state_dict(merged, strict=False)
    with torch.no_grad():
        want = result.model(input_ids=tokens).logits
    torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-5)
