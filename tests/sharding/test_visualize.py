"""`visualize_sharding`: text, HTML, and what it refuses."""

import sys

import pytest
import torch

import xfunc as xf
from xfunc.sharding import (
    AbstractMesh,
    NamedSharding,
    P,
    device_put,
    make_mesh,
    use_mesh,
    visualize_sharding,
)

FLAT = AbstractMesh((4, 2), ("x", "y"))
CUBE = AbstractMesh((2, 2, 2), ("x", "y", "z"))
POD = AbstractMesh((64, 64), ("x", "y"))


def cells(text):
    """The cells of each row of a picture."""
    return [
        [cell.strip() for cell in line.strip("│").split("│")]
        for line in text.splitlines()
        if line.startswith("│")
    ]


@pytest.mark.parametrize(
    ("mesh", "shape", "spec", "expected"),
    [
        (FLAT, (8, 4), P("x", "y"), [["0", "1"], ["2", "3"], ["4", "5"], ["6", "7"]]),
        (FLAT, (8, 4), P("x"), [["0,1"], ["2,3"], ["4,5"], ["6,7"]]),
        (FLAT, (8, 4), P(None, "y"), [["0,2,4,6", "1,3,5,7"]]),
        (FLAT, (8, 4), P(("y", "x")), [["0"], ["2"], ["4"], ["6"], ["1"], ["3"], ["5"], ["7"]]),
        (FLAT, (8, 4), P(), [["0-7"]]),
        (FLAT, (8,), P("x"), [["0,1", "2,3", "4,5", "6,7"]]),
        (FLAT, 8, P("y"), [["0,2,4,6", "1,3,5,7"]]),
        (FLAT, (), P(), [["0-7"]]),
        (FLAT, (0, 4), P("x", "y"), [["0", "1"], ["2", "3"], ["4", "5"], ["6", "7"]]),
        (FLAT, (3, 4, 2), P(None, "x", "y"), [["0", "1"], ["2", "3"], ["4", "5"], ["6", "7"]]),
        (CUBE, (2, 8), P("y", "x"), [["0,1", "4,5"], ["2,3", "6,7"]]),
    ],
)  # fmt: skip
def test_visualize_sharding_cells(mesh, shape, spec, expected):
    picture = visualize_sharding(shape, NamedSharding(mesh, spec))
    assert cells(str(picture)) == expected


def test_visualize_sharding_text(capsys):
    picture = visualize_sharding(
        xf.ShapeDtypeStruct((4, 2), torch.float32, NamedSharding(FLAT, P(None, "y")))
    )
    expected = """\
float32[4,2] as P(None, 'y') on AbstractMesh(x=4, y=2): parts of [4,1]
┌─────────┬─────────┐
│ 0,2,4,6 │ 1,3,5,7 │
└─────────┴─────────┘
"""
    assert capsys.readouterr().out == expected
    assert repr(picture) + "\n" == expected


def test_visualize_sharding_of_three_divided_dimensions():
    picture = visualize_sharding((4, 8, 3, 2), NamedSharding(CUBE, P("y", "x", None, "z")))
    assert [name for name, _ in picture.tables] == ["[0:2, :, :, :]", "[2:4, :, :, :]"]
    assert cells(str(picture)) == [["0", "1"], ["4", "5"], ["2", "3"], ["6", "7"]]


@pytest.mark.parametrize("spec", [P("x", "y"), P("y"), P(None, ("y", "x")), P("x")])
def test_visualize_sharding_text_size_for_many_devices(spec):
    lines = str(visualize_sharding((64, 4096), NamedSharding(POD, spec))).splitlines()
    assert len(lines) < 30
    assert max(map(len, lines)) < 100


def test_visualize_sharding_cells_for_many_devices():
    rows = cells(str(visualize_sharding((64, 64), NamedSharding(POD, P("x", "y")))))
    assert rows[0] == ["0", "1", "2", "3", "4", "5", "...", "63"]
    assert rows[-2:] == [
        ["..."] * 8,
        ["4032", "4033", "4034", "4035", "4036", "4037", "...", "4095"],
    ]
    rows = cells(str(visualize_sharding((64, 64), NamedSharding(POD, P("y")))))
    assert rows[1] == ["1,65,129,193,... (64)"]
    mesh = AbstractMesh((16, 2, 2), ("x", "y", "z"))
    tables = visualize_sharding((16, 2, 2), NamedSharding(mesh, P("x", "y", "z"))).tables
    assert [name for name, _ in tables][5:] == ["[5:6, :, :]", "...", "[15:16, :, :]"]


def test_visualize_sharding_of_tensors(capsys):
    mesh = make_mesh((2, 4), ("x", "y"))
    x = device_put(torch.ones(4, 8), NamedSharding(mesh, P("y", "x")))
    assert cells(str(visualize_sharding(x))) == [["0", "4"], ["1", "5"], ["2", "6"], ["3", "7"]]
    assert "float32[4,8] as P('y', 'x') on Mesh(x=2, y=4)" in capsys.readouterr().out
    product = xf.jit(lambda a: a @ a.T)(x)
    assert "float32[4,4] as " in str(visualize_sharding(product))
    with use_mesh(mesh):
        assert cells(str(visualize_sharding(x, P("x")))) == [["0-3"], ["4-7"]]


def test_visualize_sharding_in_interactive_session(monkeypatch, capsys):
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    visualize_sharding((4,), NamedSharding(FLAT, P("x")))
    assert capsys.readouterr().out == ""


def test_visualize_sharding_html():
    page = visualize_sharding((4, 2), NamedSharding(FLAT, P("y")))._repr_html_()
    assert page.count("<tr>") == page.count("<td ") == 2
    assert "&#x27;y&#x27;" in page
    assert ">0,2,4,6</td>" in page
    assert page.count("background:#dbeafe") == 1


@pytest.mark.parametrize(
    ("x", "sharding", "message"),
    [
        ((7, 4), NamedSharding(FLAT, P("x")), "its dimension 0 is 7, which is not a multiple of 4"),
        ((8,), NamedSharding(FLAT, P("x", "y")), "has 1 dimensions"),
        ((8, 4), None, r"given \(8, 4\) without a sharding"),
        (torch.ones(4), None, r"float32\[4\], which is not on a mesh"),
        ((8,), P("x"), "no mesh is in use"),
        ((8,), "x", "is not a sharding"),
        (3.5, NamedSharding(FLAT, P()), "was given 3.5 as shape"),
        ((-1,), NamedSharding(FLAT, P()), r"was given \(-1,\) as shape"),
    ],
)
def test_visualize_sharding_errors(x, sharding, message):
    with pytest.raises(xf.errors.ShardingError, match=message):
        visualize_sharding(x, sharding)


def test_visualize_sharding_of_traced_tensor_raises():
    def f(x):
        visualize_sharding(x.shape, NamedSharding(FLAT, P("x")))
        visualize_sharding(x)
        return x

    with pytest.raises(xf.errors.ShardingError, match="was given a traced tensor"):
        xf.jit(f)(torch.ones(4, 4))
