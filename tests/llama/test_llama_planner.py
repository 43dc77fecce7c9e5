"""The search for the largest batch that fits on TPUs, with a compiler that is made up."""

from collections.abc import Callable

import pytest

from examples.llama import model
from examples.llama.tools import planner
from examples.llama.tools.planner import Mesh, Trial

LIMIT = 1000


class Fake:
    """A compiler for which a policy takes a fixed size, and so much for each row of a part."""

    def __init__(self, sizes: dict[str, Callable[[int], int]], *, tells: bool = True) -> None:
        self.sizes, self.tells = sizes, tells
        self.compiled: list[tuple[str, Mesh, int]] = []

    def __call__(self, mesh: Mesh, policy: str, batch: int) -> Trial:
        assert batch % mesh.parts == 0
        self.compiled.append((policy, mesh, batch))
        size = self.sizes[policy](batch // mesh.parts * mesh.tensor)
        known = size if self.tells or size <= LIMIT else None
        return Trial(mesh, policy, batch, size <= LIMIT, known, mfu_bound=1 / len(policy))


def found(fake: Fake, *meshes: Mesh) -> Trial | None:
    return planner.best(planner.search(meshes, list(fake.sizes), fake, LIMIT))


FSDP = Mesh(1, 4, 1)


def test_search_affine_size_takes_three_compiles() -> None:
    fake = Fake({"full": lambda rows: 200 + 30 * rows})
    trial = found(fake, FSDP)
    assert trial is not None
    assert trial.batch == 4 * 26
    assert [batch // 4 for _, _, batch in fake.compiled] == [1, 4, 26]


@pytest.mark.parametrize(
    ("size", "tried"),
    [
        (lambda rows: 200 + 30 * rows + rows**2, [1, 4, 22, 15, 16, 17]),  # more than predicted
        (lambda rows: 200 + 30 * rows - 25 * (rows > 20), [1, 4, 26, 27]),  # and less
        (lambda rows: 1000 * rows, [1, 2]),
        (lambda rows: 990 if rows < 7 else 1010, [1, 2, 4, 8, 6, 7]),  # no slope
    ],
)
def test_search_other_sizes_take_a_few_more_compiles(
    size: Callable[[int], int], tried: list[int]
) -> None:
    fake = Fake({"full": size})
    trial = found(fake, FSDP)
    assert trial is not None
    assert [batch // 4 for _, _, batch in fake.compiled] == tried
    assert trial.batch == 4 * max(rows for rows in tried if size(rows) <= LIMIT)


def test_search_with_unknown_sizes_above_the_limit() -> None:
    fake = Fake({"full": lambda rows: 200 + 30 * rows + rows**2}, tells=False)
    trial = found(fake, FSDP)
    assert trial is not None
    assert trial.batch == 4 * 17
    assert len(fake.compiled) == 7


def test_search_nothing_fits() -> None:
    fake = Fake({"offload": lambda rows: 2000, "full": lambda rows: 3000})
    assert found(fake, FSDP, Mesh(1, 2, 2)) is None
    assert len(fake.compiled) == 2  # one for each mesh: `full` keeps more than `offload`


def test_search_tries_losing_policies_and_meshes_once() -> None:
    fake = Fake(
        {
            "offload": lambda rows: 200 + 30 * rows,
            "full": lambda rows: 200 + 40 * rows,
            "dots": lambda rows: 200 + 60 * rows,
        }
    )
    other = Mesh(1, 2, 2)
    trial = found(fake, FSDP, other)
    assert trial is not None
    assert (trial.mesh, trial.policy, trial.batch) == (FSDP, "offload", 104)
    assert fake.compiled[3:] == [("full", FSDP, 104), ("offload", other, 104)]


def test_best_of_equal_batches_is_the_fastest() -> None:
    fake = Fake({"offload": lambda rows: 500 * rows, "full": lambda rows: 500 * rows})
    trial = found(fake, FSDP)
    assert trial is not None
    assert (trial.policy, trial.batch) == ("full", 8)


def test_meshes_divide_heads_and_features() -> None:
    config = model.PUBLISHED["llama3.1-405b"]
    sizes = [(256, 1), (128, 2), (64, 4), (32, 8)]
    assert planner.meshes(config, 256) == [Mesh(1, *size) for size in sizes]
    assert planner.meshes(model.TINY["tiny"], 8) == [Mesh(1, 8, 1), Mesh(1, 4, 2)]
