"""Indices: numbers, slices, tensors, masks, `None` and `...`, and what mixes them."""

from __future__ import annotations

from .writer import DoesNotFit, Tensor, Writer


def index(w: Writer, x: Tensor) -> tuple[str, Tensor]:
    """The text of an index of a tensor, and the part that it gives."""
    parts = []
    dims = list(x.shape)
    used = w.count(1, len(dims)) if dims and w.chance(0.9) else 0
    for n in dims[:used]:
        parts.append(_part(w, n))
    if w.chance(0.2):
        parts.insert(w.count(0, len(parts)), "None")
    if not parts or (used < len(dims) and w.chance(0.3)) or w.chance(0.05):
        place = w.choose((0, len(parts)))
        if place == 0 and used < len(dims):  # the parts are for the last dimensions then
            parts = [_part(w, n) for n in dims[len(dims) - used :]]
        parts.insert(place, "...")
    if w.chance(0.03):
        parts.insert(0, w.choose(("True", "False")))
    text = ", ".join(parts)
    name = w.name("part")
    w.run(f"{name} = {{}}".format(f"({_probe(w, x)})[{text}]"))
    return text, w.values[name]


def _probe(w: Writer, x: Tensor) -> str:
    name = w.name("whole")
    w.values[name] = x
    return name


def _part(w: Writer, n: int) -> str:
    """What stands for one dimension of a size."""
    choice = w.count(0, 13)
    if n == 0 or choice <= 3:
        return _slice(w, n)
    if choice <= 6:
        return str(w.count(-n, n - 1))
    at = [w.count(-n, n - 1) for _ in range(w.count(1, 3))]
    if choice == 7:
        return str(at)
    if choice == 8:
        return f"torch.tensor({at})"
    if choice == 9:
        dtype = w.choose(("int32", "int16", "int8", "uint8", "int64"))
        at = [a % n for a in at] if dtype == "uint8" else at
        shown = at[0] if w.chance(0.3) else [[a] for a in at] if w.chance(0.3) else at
        if dtype in ("int16", "int8"):  # torch takes no other index
            return f"torch.tensor({shown}, dtype=torch.{dtype}).long()"
        return f"torch.tensor({shown}, dtype=torch.{'int32' if dtype == 'uint8' else dtype})"
    if choice == 10:
        return f"[{', '.join(w.choose(('True', 'False')) for _ in range(n))}]"
    if choice == 11:
        return f"range({w.count(0, n)})"
    try:
        i = w.pick("int", lambda t: t.ndim < 3 and t.numel() > 0)
    except DoesNotFit:
        return _slice(w, n)
    return f"({i} % {n}).long()"


def _slice(w: Writer, n: int) -> str:
    """A slice, which may reach beyond the ends, or be empty."""
    ends = ["", "", *(str(i) for i in range(-n - 1, n + 2))]
    step = w.choose(("", "", "", ":2", ":3", ":1"))
    return f"{w.choose(ends)}:{w.choose(ends)}{step}"
