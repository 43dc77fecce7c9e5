"""Cut problems at random, and all good plans of a small one, found without being clever."""

import random
from collections.abc import Collection
from itertools import combinations

from xfunc.remat.cut import CutProblem, Node, NoPlan, recomputed

Cost = tuple[int, float]
"""Bytes kept and seconds added."""


def frontier(problem: CutProblem, *, heavy: bool = True) -> list[Cost]:
    """What the plans cost that no other plan beats in both measures, the fewest bytes first.

    Users come before their operands: what is asked for when its turn comes is kept or computed
    again, either of which is tried. Ways that have come to ask for the same are one state, and of
    one state only the costs that no other beats are followed.
    """
    states: dict[frozenset[int], set[Cost]] = {frozenset(problem.needed): {(0, 0.0)}}
    for n in reversed(problem.nodes):
        following: dict[frozenset[int], set[Cost]] = {}
        for asked, costs in states.items():
            for then, size, time in _choices(n, asked, heavy):
                following.setdefault(then, set()).update((b + size, s + time) for b, s in costs)
        states = {asked: set(_unbeaten(costs)) for asked, costs in following.items()}
    return _unbeaten(states.get(frozenset(), set()))


def _choices(
    n: Node, asked: frozenset[int], heavy: bool
) -> list[tuple[frozenset[int], int, float]]:
    if n.id not in asked:
        return [(asked, 0, 0.0)]
    rest = asked - {n.id}
    if n.available:
        return [(rest, 0, 0.0)]
    choices = []
    if n.keepable:
        choices.append((rest, n.bytes, 0.0))
    if n.recomputable and (heavy or not n.heavy):
        choices.append((rest.union(n.operands), 0, n.seconds))
    return choices


def _unbeaten(costs: set[Cost]) -> list[Cost]:
    found: list[Cost] = []
    for size, time in sorted(costs):
        if not found or time < found[-1][1]:
            found.append((size, time))
    return found


def frontier_of_subsets(problem: CutProblem) -> list[Cost]:
    """The same by trying every set of values that may be kept, for a handful of them."""
    nodes = {n.id: n for n in problem.nodes}
    keepable = [n.id for n in problem.nodes if n.keepable and not n.available]
    costs: set[Cost] = set()
    for count in range(len(keepable) + 1):
        for kept in combinations(keepable, count):
            try:
                again = recomputed(problem, kept)
            except NoPlan:
                continue
            size = sum(nodes[v].bytes for v in kept)
            costs.add((size, sum(nodes[v].seconds for v in again)))
    return _unbeaten(costs)


def random_problem(
    seed: int, most: int = 28, sizes: tuple[int, ...] = (0, 1, 2, 4, 4, 8, 16)
) -> CutProblem:
    """A problem with everything in it: inputs, tuples and their elements, random state, ties."""
    rng = random.Random(seed)
    nodes: list[Node] = []
    count = rng.randint(most // 3, most)
    while len(nodes) < count:
        k = len(nodes)
        reach = nodes[-rng.choice((3, 8, 30)) :]
        values = [n.id for n in reach if n.keepable]
        operands = tuple(rng.choices(values, k=rng.choice((1, 1, 2, 2, 3)))) if values else ()
        if not values or rng.random() < 0.15:
            nodes.append(Node(k, rng.choice(sizes), 0.0, (), available=rng.random() < 0.7))
        elif rng.random() < 0.15:  # a tuple and its elements
            sure = rng.random() < 0.6
            parts = [rng.choice(sizes) for _ in range(rng.randint(1, 3))]
            time = float(rng.randint(0, 20))
            nodes.append(
                Node(k, sum(parts), time, operands, False, False, sure, rng.random() < 0.5)
            )
            nodes += [Node(k + 1 + j, b, 0.0, (k,)) for j, b in enumerate(parts)]
        else:
            time = float(rng.choice((0, 0, 1, 1, 2, 3, rng.randint(4, 40))))
            sure, heavy = rng.random() < 0.9, time > 10 and rng.random() < 0.7
            nodes.append(Node(k, rng.choice(sizes), time, operands, False, True, sure, heavy))
    values = [n.id for n in nodes if n.keepable]
    needed = rng.sample(values, k=min(len(values), rng.randint(1, 10)))
    return CutProblem(tuple(nodes), tuple(needed))


def working_bytes(problem: CutProblem, kept: Collection[int] = ()) -> int:
    """The most bytes that are there at once for what is computed again.

    It is computed in the order of the problem, before the backward pass starts. What is needed is
    held until then, the rest until its last use. It is the most if nothing is kept but what cannot
    be computed again: see NOTE [guarantees about the peak] in `xfunc.remat.cut`.
    """
    size = {n.id: n.bytes for n in problem.nodes}
    fixed = {n.id for n in problem.nodes if not n.recomputable}
    again = set(recomputed(problem, fixed.union(kept)))
    held = again.intersection(problem.needed)
    live = peak = sum(size[v] for v in held)
    for n in reversed(problem.nodes):
        if n.id in again:
            operands = again.intersection(n.operands) - held
            held |= operands
            live += sum(size[v] for v in operands)
            peak = max(peak, live)
            live -= n.bytes
    return peak
