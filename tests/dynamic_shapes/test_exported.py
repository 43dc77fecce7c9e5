"""Files that hold a program of a range of shapes: round trips, JAX, and refusals.

Run as a script, it writes tests/data/export/range.xfunc anew: see tests/record/export_in_jax.py.
"""

import hashlib
import io
import json
import zipfile
from pathlib import Path

import pytest
import torch

import xfunc as xf
from tests.support import in_jax
from tests.support.in_jax import SIZES
from xfunc.errors import ShapeError, TreeMismatchError, UnsupportedOpError

DATA = Path(__file__).parents[1] / "data" / "export"
S = xf.Dim("S", max=32)
HELD = torch.linspace(0.0, 1.0, 3)


def struct(*shape, dtype=torch.float32):
    return xf.ShapeDtypeStruct(shape, dtype)


def given(n):
    """What `in_jax.inputs` gives."""
    return [torch.arange(k * 4.0).cos().reshape(k, 4) for k in (n, 4)]


def ragged(x, w):
    """A mean, slices, a loop as long as the dimension, and gradients through all."""

    def loss(w):
        h, each = xf.scan(lambda h, a: (torch.tanh(h @ w + a), h.sum()), x.new_zeros(4), x)
        return (h * x.mean(0)).sum() + each.softmax(0)[1:].square().mean()

    return xf.value_and_grad(loss)(w), x[1:] - x[:-1], x.reshape(-1).cumsum(0) + HELD[0]


def lowered():
    jitted = xf.jit(ragged, dynamic_shapes=((S, None), None), buckets=[8, 32])
    return jitted.lower(struct(S, 4), struct(4, 4))


@pytest.fixture(scope="module")
def data():
    return xf.export.serialize(lowered())


def equal(got, want):
    for g, w in zip(xf.tree.leaves(got), xf.tree.leaves(want), strict=True):
        torch.testing.assert_close(g.cpu(), w.cpu(), rtol=1e-5, atol=1e-6)


def unpacked(data):
    """The parts of a file."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(parts):
    """A file of parts, with their checksums."""
    sums = {name: hashlib.sha256(data).hexdigest() for name, data in parts.items()}
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in {**parts, "checksums.json": json.dumps(sums)}.items():
            archive.writestr(name, data)
    return file.getvalue()


def test_export_range_serves_all_sizes(data):
    loaded = xf.export.deserialize(data)
    assert [sizes for sizes, _ in loaded.buckets] == [{"S": 8}, {"S": 32}]
    assert loaded.stablehlo == loaded.buckets[-1][1]
    assert str(loaded.in_info[0][0]) == "float32[S,4]"
    assert [str(x) for x in xf.tree.leaves(loaded.out_info)[2:]] == [
        "float32[S-1,4]",
        "float32[4*S]",
    ]
    for n in SIZES:
        equal(loaded(*given(n)), xf.jit(ragged)(*given(n)))
    x, w = given(5)
    equal(xf.jit(lambda x: loaded(x, w)[2] * 2)(x), 2 * x.reshape(-1).cumsum(0))
    assert xf.export.serialize(lowered()) == data


def test_export_range_equals_jax(data):
    """JAX runs the StableHLO in the file, with NaN in the padding."""
    want = json.loads((DATA / "results.json").read_text())["range"]
    of_jax = in_jax.run_file(io.BytesIO(data))
    equal(*([torch.tensor(x).double() for x in xs] for xs in (of_jax, want)))
    for file in (data, (DATA / "range.xfunc").read_bytes()):
        loaded = xf.export.deserialize(file)
        ours = [x.cpu().ravel() for n in SIZES for x in xf.tree.leaves(loaded(*given(n)))]
        equal(ours, [torch.tensor(x) for x in want])


def test_export_range_two_dims_trees_and_static_arguments():
    B = xf.Dim("B", max=4)

    def f(scale, batch, *, shift):
        return {"out": scale * batch["x"].sum(1) + shift, "n": batch["mask"].sum()}

    batch = {"x": struct(B, 2 * S), "mask": struct(B, dtype=torch.bool)}
    jitted = xf.jit(
        f, static_argnums=0, dynamic_shapes=(None, {"x": (B, 2 * S), "mask": (B,)}),
        buckets={"B": [1, 4], "S": [6, 32]},
    )  # fmt: skip
    loaded = xf.export.deserialize(xf.export.serialize(jitted.lower(3, batch, shift=1.0)))
    assert len(loaded.buckets) == 4
    for b, s in ((1, 3), (2, 6), (4, 31)):
        x = torch.randn(b, 2 * s)
        got = loaded({"x": x, "mask": torch.arange(b) != 1}, shift=0.5)
        equal(got, {"out": 3 * x.sum(1) + 0.5, "n": torch.tensor(b - (b > 1))})
    # An odd size is not 2*S, and two arguments have to agree about B.
    with pytest.raises(ShapeError, match=r"\['x'\] of .*f is 5, which is declared as 2\*S"):
        loaded({"x": torch.ones(2, 5), "mask": torch.ones(2, dtype=torch.bool)}, shift=0.5)
    with pytest.raises(ShapeError, match="makes it B="):
        loaded({"x": torch.ones(2, 4), "mask": torch.ones(3, dtype=torch.bool)}, shift=0.5)


@pytest.mark.parametrize(
    ("x", "kind", "text"),
    [
        (torch.ones(33, 4), ShapeError, "is 33, which is declared as S; S is at most 32"),
        (torch.ones(0, 4), ShapeError, "it is empty"),
        (torch.ones(3, 5), TreeMismatchError, r"argument 0: float32\[3,5\] instead of .*\[S,4\]"),
        (torch.ones(3), TreeMismatchError, r"float32\[3\] instead of float32\[S,4\]"),
        (torch.ones(3, 4, 1), TreeMismatchError, r"float32\[3,4,1\] instead of"),
        (torch.ones(3, 4).double(), TreeMismatchError, r"float64\[3,4\] instead of"),
        (torch.ones(3, 4, requires_grad=True), UnsupportedOpError, "no longer be differentiated"),
    ],
)
def test_export_range_wrong_arguments_raise(data, x, kind, text):
    loaded = xf.export.deserialize(data)
    with pytest.raises(kind, match=text):
        loaded(x, torch.ones(4, 4))


def test_lower_dim_errors():
    Q = xf.Dim("Q")
    for f, shape, text in [
        (lambda x: torch.fft.fft(x).real, (S,), "another fft"),
        (torch.sin, (Q,), "Q has no largest size"),
        (torch.sin, (xf.Dim("Q", max=4) * S,), "no argument of sin determines Q"),
    ]:
        with pytest.raises(ShapeError, match=text):
            xf.jit(f).lower(struct(*shape))
    with pytest.raises(ShapeError, match=r"call lower\(\.\.\.\) for a program of all sizes"):
        xf.jit(torch.sin).trace(struct(S))


def test_export_range_damaged_files_raise(data):
    contents = unpacked(data)
    whole = {n: d for n, d in contents.items() if n != "checksums.json"}
    assert len(xf.export.deserialize(packed(whole)).buckets) == 2
    header = json.loads(contents["header.json"])
    wrong = {
        "symbols": [["S", 1, "x", 1]],
        "buckets": [{"S": 8}, {"Q": 32}],
        "input_avals": [[[[[1, 0, {"S": 1}]], 4], "float32"]],
        "output_avals": [],
        "bucket_output_avals": [[], []],
        "donated": [2],
        "shardings": {"meshes": [], "arrays": [None, [0, []]]},
        "static": None,
    }
    files = {f"wrong {k}": {**contents, "header.json": json.dumps(header | {k: v}).encode()}
             for k, v in wrong.items()}  # fmt: skip
    files |= {
        f"without {k}": {n: d for n, d in contents.items() if n != k}
        for k in contents
        if k != "checksums.json"
    }
    files["swapped"] = {**contents, "program-0.hlo": contents["program-1.hlo"]}
    for what, parts in files.items():
        # The sums are those of the damaged parts, so that what is damaged is read.
        parts = {n: d for n, d in parts.items() if n != "checksums.json"}
        with pytest.raises(ValueError, match="not a program exported by xfunc") as raised:
            xf.export.deserialize(packed(parts))
        assert type(raised.value) is ValueError, what


if __name__ == "__main__":
    file = DATA / "range.xfunc"
    file.write_bytes(xf.export.serialize(lowered()))
    with zipfile.ZipFile(file) as archive:
        print(archive.namelist())
