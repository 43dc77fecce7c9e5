"""Documents packed into rows, and their losses there."""

import tracemalloc
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch

import xfunc as xf
from examples.llama import model
from examples.llama.data import packing
from examples.llama.data.corpus import Part
from examples.llama.data.packing import Permutation
from examples.llama.model.plan import Plan


def flat(sizes: Iterable[int]) -> tuple[np.ndarray, np.ndarray]:
    """Documents of these sizes, in which each token is another one."""
    ends = np.cumsum(list(sizes))
    return np.arange(10, 10 + ends[-1], dtype=np.uint16), ends


def plainly(
    tokens: np.ndarray, ends: np.ndarray, epoch: packing.Epoch, seq: int
) -> Iterator[tuple[list[int], list[int], list[int]]]:
    """All rows of the stream, one token after the other."""
    stream = []
    for end in epoch.sources.tolist():
        begin = max([0, *(e for e in ends.tolist() if e < end)])
        document = tokens[begin:end].tolist()
        stream += zip(document, [*document[1:], model.IGNORE], strict=True)
    stream = stream[epoch.shift :] + stream[: epoch.shift]
    for start in range(0, len(stream), seq):
        row, segment, segments = stream[start : start + seq], 1, []
        for _, target in row:
            segments.append(segment)
            segment += target == model.IGNORE
        empty = seq - len(row)
        yield (
            [token for token, _ in row] + [0] * empty,
            [target for _, target in row] + [model.IGNORE] * empty,
            segments + [0] * empty,
        )


@pytest.mark.parametrize("seq", [1, 4, 7, 64])
@pytest.mark.parametrize("sizes", [[40], [1, 1, 1, 5], [3, 20, 1, 9, 2, 8], [8, 8, 8, 8]])
def test_pack_matches_a_loop_over_tokens(sizes: list[int], seq: int) -> None:
    tokens, ends = flat(sizes)
    for epoch in (packing.in_order(ends, seq), packing.shuffled(ends, seq, (3, 0))):
        count = len(epoch.rows)
        packed = packing.pack(tokens, epoch, np.arange(count + 1), seq)
        assert all(part.dtype == np.int32 for part in packed)
        expected = list(plainly(tokens, ends, epoch, seq))
        assert len(expected) == count
        for i, row in enumerate(expected):
            assert tuple(part[i].tolist() for part in packed) == row
        past = tuple(set(part[count].tolist()) for part in packed)
        assert past == ({0}, {model.IGNORE}, {0})


@pytest.mark.parametrize("seq", [1, 4, 7])
def test_pack_shuffled_has_each_token_once(seq: int) -> None:
    tokens, ends = flat([3, 20, 1, 9, 2, 8])
    epoch = packing.shuffled(ends, seq, (0, 1))
    assert sorted(epoch.rows) == list(range(-(-len(tokens) // seq)))
    seen, targets, segments = packing.pack(tokens, epoch, epoch.rows, seq)
    assert sorted(seen[segments > 0]) == tokens.tolist()
    followed = set(tokens.tolist()) - set(tokens[ends - 1].tolist())
    assert sorted(seen[targets != model.IGNORE]) == sorted(followed)
    assert (targets - seen)[targets != model.IGNORE].tolist() == [1] * len(followed)


def test_shuffled_order_is_that_of_earlier_releases() -> None:
    tokens, ends = flat([3, 2, 4, 1, 6])
    rows = []
    for number in range(2):
        epoch = packing.shuffled(ends, 6, (0, number))
        rows += packing.pack(tokens, epoch, epoch.rows, 6)[0].tolist()
    assert rows == [
        *([20, 21, 22, 23, 0, 0], [24, 25, 19, 15, 16, 17], [18, 13, 14, 10, 11, 12]),
        *([15, 16, 17, 18, 10, 11], [12, 19, 20, 21, 0, 0], [22, 23, 24, 25, 13, 14]),
    ]


# Many documents


@pytest.mark.parametrize("size", [1, 2, 3, 10, 64, 65, 1000, 5000])
def test_permutation_has_each_item_once(size: int) -> None:
    order = Permutation(size, (0, 1))(np.arange(size))
    assert sorted(order) == list(range(size))
    assert [int(Permutation(size, (0, 1))(np.array([i]))[0]) for i in range(0, size, 99)] == list(
        order[::99]
    )


def test_permutation_is_like_a_drawn_one() -> None:
    places = np.arange(3000)
    orders = np.stack([Permutation(3000, (3, epoch))(places) for epoch in range(300)])
    for order in orders[:20]:
        assert abs(np.corrcoef(places, order)[0, 1]) < 0.07
        assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.07
    for place in (0, 1, 1500, 2999):
        counts = np.histogram(orders[:, place], bins=10, range=(0, 3000))[0]
        assert scipy.stats.chisquare(counts).pvalue > 1e-4
    fixed = (orders == places).sum(1)
    assert 0.8 < fixed.mean() < 1.2  # That of all permutations is 1.


@pytest.mark.parametrize("seq", [1, 4, 7])
def test_stream_of_blocks_has_each_token_once(seq: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "BLOCK", 4)
    draw = np.random.default_rng(0)
    tokens, ends = flat(draw.integers(1, 12, 30).tolist())
    stream = packing.Stream(Part(tokens, ends), seq, 5)
    cuts = [0, *ends[3::4], len(tokens)]
    assert stream.rows == sum(-(-size // seq) for size in np.diff(cuts).tolist())
    epochs = []
    for epoch in (None, 0, 1):
        packed = stream.batch(epoch, np.arange(stream.rows))
        seen, targets, segments = packed
        assert sorted(seen[segments > 0]) == tokens.tolist()
        followed = set(tokens.tolist()) - set(tokens[ends - 1].tolist())
        assert sorted(seen[targets != model.IGNORE]) == sorted(followed)
        assert (targets - seen)[targets != model.IGNORE].tolist() == [1] * len(followed)
        for row in range(stream.rows):
            one = stream.batch(epoch, np.array([row]))
            assert all((x[0] == y[row]).all() for x, y in zip(one, packed, strict=True))
        epochs.append(seen)
    assert epochs[0][segments_of(stream) > 0].tolist() == tokens.tolist()
    assert not (epochs[1] == epochs[2]).all()
    past = stream.batch(None, np.array([stream.rows, stream.rows + 3]))
    assert [set(part.ravel().tolist()) for part in past] == [{0}, {model.IGNORE}, {0}]


def segments_of(stream: packing.Stream) -> np.ndarray:
    return stream.batch(None, np.arange(stream.rows))[2]


def test_stream_of_many_documents_takes_little_memory() -> None:
    ends = np.arange(1, 2_000_001) * 50
    tokens = np.broadcast_to(np.uint16(7), 100_000_000)
    tracemalloc.start()
    stream = packing.Stream(Part(tokens, ends), 2048, 0)
    for epoch in range(3):
        stream.batch(epoch, np.arange(0, 48_000, 6000))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < ends.nbytes // 2


# With the model


@pytest.mark.parametrize("plan", [Plan(attention="dense"), Plan(block=8)], ids=["dense", "blocks"])
def test_forward_of_packed_documents_matches_each_alone(plan: Plan) -> None:
    config = model.Config.tiny(vocab=64)
    params = model.init(config, seed=1, dtype=torch.float64)
    tokens, ends = flat([5, 9, 2, 16])
    packed = packing.pack(tokens % 64, packing.in_order(ends, 40), np.arange(1), 40)
    row = model.Batch(*map(torch.from_numpy, packed))

    @xf.jit
    def forward(params: Any, tokens: torch.Tensor, segments: torch.Tensor | None) -> torch.Tensor:
        return model.forward(params, tokens, config, plan, segments)

    def losses(batch: model.Batch) -> torch.Tensor:
        """Of each token that has a target, in the order of the row."""
        logits = forward(params, batch.tokens, batch.segments)
        chosen = batch.targets.long().clamp(min=0)[..., None]
        found = -xf.device_get(logits).log_softmax(-1).gather(-1, chosen)[..., 0]
        return found[batch.targets != model.IGNORE]

    rows = np.zeros((4, 17), np.int64)
    targets = np.full((4, 17), model.IGNORE)
    for i, document in enumerate(np.split(tokens % 64, ends[:-1])):
        rows[i, : len(document)] = document
        targets[i, : len(document) - 1] = document[1:]
    ones = torch.ones(4, 17, dtype=torch.int32)
    alone = losses(model.Batch(torch.from_numpy(rows), torch.from_numpy(targets), ones))
    together = losses(row)
    assert (together.dtype, len(together)) == (torch.float64, 28)
    torch.testing.assert_close(together, alone, rtol=1e-6, atol=1e-6)
    merged = losses(row._replace(segments=torch.ones(1, 40, dtype=torch.int32)))
    assert not torch.allclose(merged, together, rtol=1e-3)
