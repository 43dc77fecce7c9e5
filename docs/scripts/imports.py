"""The import graph as a picture: `python -m docs.scripts.imports > docs/images/imports.svg`.

Each box is a folder or a module of `xfunc`; those that import each other share a box. An arrow
means that the upper box imports the lower one. Transitive arrows are omitted: a box may import
everything that can be reached from it.
"""

from __future__ import annotations

import itertools

import grimp
import networkx as nx

WIDTH, HEIGHT, GAP, ROW = 170, 34, 26, 78
STYLE = """
  text { font: 15px system-ui, sans-serif; text-anchor: middle; fill: #1f2937 }
  rect { fill: #eef2ff; stroke: #6366f1 }
  .arrow { fill: none; stroke: #64748b; marker-end: url(#head) }
"""


def arrows() -> nx.DiGraph:
    """The imports between boxes, a box being a tuple of names."""
    imports = grimp.build_graph("xfunc", exclude_type_checking_imports=True, cache_dir=None)
    parts = sorted(imports.find_children("xfunc"))
    for part in parts:
        imports.squash_module(part)
    graph = nx.DiGraph()
    graph.add_nodes_from(part.removeprefix("xfunc.") for part in parts)
    for a, b in itertools.permutations(parts, 2):
        if imports.direct_import_exists(importer=a, imported=b):
            graph.add_edge(a.removeprefix("xfunc."), b.removeprefix("xfunc."))
    boxes = nx.condensation(graph)
    names = {box: tuple(sorted(boxes.nodes[box]["members"])) for box in boxes}
    return nx.relabel_nodes(nx.transitive_reduction(boxes), names)


def rows(graph: nx.DiGraph) -> list[list[tuple[str, ...]]]:
    """Boxes in rows, each as low as its imports allow; the lowest row first."""
    height: dict[tuple[str, ...], int] = {}
    for box in reversed(list(nx.lexicographical_topological_sort(graph, key=str))):
        height[box] = 1 + max((height[b] for b in graph[box]), default=-1)
    found: list[list[tuple[str, ...]]] = [[] for _ in range(max(height.values()) + 1)]
    for box in sorted(height):
        found[height[box]].append(box)
    place = {box: float(i) for row in found for i, box in enumerate(row)}
    for row in found[1:]:  # above what it imports
        row.sort(key=lambda box: sum(place[b] for b in graph[box]) / max(len(graph[box]), 1))
        place |= {box: float(i) for i, box in enumerate(row)}
    return found


def picture(graph: nx.DiGraph) -> str:
    """The graph as SVG."""
    levels = rows(graph)
    width = max(map(len, levels)) * (WIDTH + GAP) + GAP
    height = len(levels) * ROW + GAP
    corner: dict[tuple[str, ...], tuple[float, float]] = {}
    for level, row in enumerate(reversed(levels)):
        left = (width - len(row) * (WIDTH + GAP) + GAP) / 2
        for i, box in enumerate(row):
            corner[box] = (left + i * (WIDTH + GAP), GAP + level * ROW)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}">',
        f"<style>{STYLE}</style>",
        '<marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" '
        'orient="auto"><path d="M0 0L8 4L0 8z" fill="#64748b"/></marker>',
        f'<rect width="{width}" height="{height}" style="fill: white; stroke: none"/>',
    ]
    for a, b in sorted(graph.edges):
        (x, y), (u, v) = corner[a], corner[b]
        x, y, u = x + WIDTH / 2, y + HEIGHT, u + WIDTH / 2
        bend = (v - y) / 2
        way = f"M{x:g} {y:g}C{x:g} {y + bend:g} {u:g} {v - bend:g} {u:g} {v:g}"
        lines.append(f'<path class="arrow" d="{way}"/>')
    for box, (x, y) in sorted(corner.items()):
        lines.append(f'<rect x="{x:g}" y="{y:g}" width="{WIDTH}" height="{HEIGHT}" rx="6"/>')
        lines.append(f'<text x="{x + WIDTH / 2:g}" y="{y + 22:g}">{", ".join(box)}</text>')
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    print(picture(arrows()), end="")
