"""Exported programs: round trips, other processes, JAX, and what is refused.

Run as a script, it writes the files of tests/data/export anew: see export_in_jax.py.
"""

import collections
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

import xfunc as xf
from tests.support import in_jax
from tests.support.fresh import Server

pytestmark = pytest.mark.quick

DATA = Path(__file__).parents[1] / "data" / "export"
S = xf.ShapeDtypeStruct
Point = collections.namedtuple("Point", "x y")
Dot = collections.namedtuple("Dot", "x y")
HELD = torch.linspace(0.0, 1.0, 4)


def inputs(shapes):
    return [torch.arange(torch.Size(s).numel()).cos().reshape(s) for s in shapes]


def mlp(x, w, v):
    return torch.softmax(torch.relu(x @ w + HELD) @ v, -1)


def loop(x, w, v):
    last, each = xf.scan(lambda c, _: (torch.tanh(c @ w), c.sum()), x[:, :4] @ w, length=3)
    return last @ v, each, torch.sort(each)[1]


def gradients(x, w, v):
    return xf.grad(lambda w, v: (loop(x[:, :4], w, v)[0] ** 2).sum(), argnums=(0, 1))(w, v)


SHAPES = [(2, 4), (4, 4), (4, 3)]
PROGRAMS = {"mlp": mlp, "loop": loop, "gradients": gradients}


def exported(name):
    avals = [S(s, torch.float32) for s in SHAPES]
    return xf.export.serialize(xf.jit(PROGRAMS[name]).lower(*avals))


def equal(got, want):
    pairs = zip(xf.tree.leaves(got), xf.tree.leaves(want), strict=True)
    for g, w in pairs:
        torch.testing.assert_close(g.cpu(), w.cpu(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", PROGRAMS)
def test_export_results_equal_jax(name):
    """What JAX computed from the StableHLO in a file is what we compute from its HLO."""
    want = json.loads((DATA / "results.json").read_text())[name]
    got = xf.export.deserialize((DATA / f"{name}.xfunc").read_bytes())(*inputs(SHAPES))
    equal(
        [x.ravel().to(torch.float64) for x in xf.tree.leaves(got)],
        [torch.tensor(w, dtype=torch.float64) for w in want],
    )
    with xf.disable_jit():
        equal(got, PROGRAMS[name](*inputs(SHAPES)))


@pytest.mark.parametrize("name", PROGRAMS)
def test_export_stablehlo_runs_in_jax(name):
    """JAX computes from the StableHLO of today what it did from the recorded one."""
    want = json.loads((DATA / "results.json").read_text())[name]
    equal(*(
        [torch.tensor(x, dtype=torch.float64) for x in xs]
        for xs in (in_jax.run_file(io.BytesIO(exported(name))), want)
    ))  # fmt: skip


def test_export_runs_without_original_code(tmp_path: Path, fresh: Server) -> None:
    x, w, v = inputs(SHAPES)
    file = tmp_path / "program"
    file.write_bytes(exported("gradients"))
    torch.save([x, w, v], tmp_path / "inputs")
    script = """if True:
        import sys, torch, xfunc as xf
        fun = xf.export.deserialize(open(sys.argv[1], "rb").read())
        out = fun(*torch.load(sys.argv[2]))
        torch.save(xf.device_get(out), sys.argv[3])
    """
    done = fresh.run(script, file, tmp_path / "inputs", tmp_path / "outputs", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    equal(torch.load(tmp_path / "outputs"), gradients(x, w, v))


def trees(p, pair, n, *, scale=None):
    out = p["a"] * pair.x - pair.y * n
    return {"out": [out, None], "point": Point(out, n), 3: () if scale is None else out * scale}


def test_export_trees_and_numbers():
    p, pair = {"a": torch.ones(3), "none": None}, Point(torch.arange(3.0), torch.ones(3))
    low = xf.jit(trees).lower(p, pair, 2, scale=0.5)
    fun = xf.export.deserialize(xf.export.serialize(low))
    got, want = fun(p, pair, 2, scale=0.5), trees(p, pair, torch.tensor(2), scale=0.5)
    equal(got, want)
    assert type(got["point"]).__name__ == "Point"
    assert got["point"]._fields == ("x", "y")
    assert fun.name == "trees"
    assert fun.out_info["out"][0] == S((3,), torch.float32)


def test_export_static_arguments_and_captures():
    held = torch.arange(3.0)
    fun = xf.jit(lambda n, x: x * n + held, static_argnums=0)
    x = torch.ones(3)
    loaded = xf.export.deserialize(xf.export.serialize(fun.lower(3, x)))
    held += 1
    equal(loaded(x), torch.tensor([3.0, 4.0, 5.0]))
    equal(xf.jit(lambda x: loaded(x) + 1)(x), torch.tensor([4.0, 5.0, 6.0]))


def test_export_without_arguments_or_results():
    functions: tuple[Any, ...] = (lambda: torch.arange(3.0), lambda: None, lambda x: {"a": None})
    for fun in functions:
        args = [torch.ones(2)] * fun.__code__.co_argcount
        loaded = xf.export.deserialize(xf.export.serialize(xf.jit(fun).lower(*args)))
        equal(loaded(*args), fun(*args))


def test_export_serialize_is_deterministic():
    assert exported("mlp") == exported("mlp")


# -- refusals -------------------------------------------------------------------------------------


def loaded():
    return xf.export.deserialize(
        xf.export.serialize(xf.jit(lambda p, n: p["a"] * n).lower({"a": torch.ones(3)}, n=2.0))
    )


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        (
            ({"a": torch.ones(4)},),
            {"n": 2.0},
            r"argument 0\['a'\]: float32\[4\] instead of float32\[3\]",
        ),
        (({"a": torch.ones(3)},), {"n": 2}, r"n: int64\[\] instead of float32\[\]"),
        (({"b": torch.ones(3)},), {"n": 2.0}, r"\['a'\]: missing\n  argument 0\['b'\]: unexpected"),
        (([torch.ones(3)],), {"n": 2.0}, r"\['a'\]: missing\n  argument 0\[0\]: unexpected"),
        ((), {"n": 2.0}, r"argument 0\['a'\]: missing"),
    ],
)
def test_exported_call_other_arguments_raise(args, kwargs, message):
    with pytest.raises(xf.errors.TreeMismatchError, match=message):
        loaded()(*args, **kwargs)


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((Dot(1.0, None), {}), {}, "argument 0: a Dot instead of a Point"),
        ((Point(1.0, ()), {}), {}, r"argument 0\.y: a tuple instead of None"),
        (
            (collections.namedtuple("Point", "x z")(1.0, None), {}),
            {},
            r"argument 0: a Point of \.x\.z instead of \.x\.y",
        ),
        ((Point(1.0, None), {"k": None}), {}, r"1: a dict of \['k'\] instead of nothing"),
        ((Point(1.0, None), None), {}, "argument 1: None instead of a dict"),
        ((Point(1.0, None),), {}, "1 positional arguments instead of 2"),
        ((Point(1.0, None), {}), {"k": None}, r"keyword arguments \['k'\] instead of \[\]"),
    ],
)
def test_exported_call_other_nodes_raise(args, kwargs, message):
    low = xf.jit(lambda p, _: p.x * 2).lower(Point(1.0, None), {})
    fun = xf.export.deserialize(xf.export.serialize(low))
    with pytest.raises(
        xf.errors.TreeMismatchError, match=rf"other arguments:\n  .*{message}\n  at"
    ):
        fun(*args, **kwargs)


def test_exported_call_errors_hold_no_values():
    fun = xf.export.deserialize(xf.export.serialize(xf.jit(dict).lower({"a": HELD, "b": ()})))
    other = {"a": HELD + 77, "b": []}
    with pytest.raises(xf.errors.TreeMismatchError, match=r"'b'.: a list instead of a") as raised:
        fun(other)
    assert "77" not in str(raised.value)


def test_exported_call_dict_in_other_order():
    low = xf.jit(lambda p: p["a"] - p["b"]).lower({"a": 3.0, "b": 1.0})
    fun = xf.export.deserialize(xf.export.serialize(low))
    assert fun({"b": 1.0, "a": 3.0}).item() == 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: torch.ones(3, device="meta"), r"\(float32\[3\]\) .*it is on the meta device"),
        (lambda: torch.ones(3).to_sparse(), "its layout torch.sparse_coo is not supported"),
        (lambda: torch.ones(3).to_mkldnn(), "its layout torch._mkldnn is not supported"),
        (lambda: torch.nested.nested_tensor([torch.ones(3)]), "it is a nested tensor"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*nested tensors")
def test_exported_call_without_dense_tensor_raises(make, message):
    with pytest.raises(xf.errors.UnsupportedOpError, match=rf"argument 0\['a'\] of .*{message}"):
        loaded()({"a": make()}, n=2.0)


def test_exported_call_without_array_raises():
    with pytest.raises(TypeError, match=r"given 'two' \(a str\) as n"):
        loaded()({"a": torch.ones(3)}, n="two")


@pytest.mark.parametrize("transform", [xf.grad, xf.vmap, xf.jacfwd])
def test_exported_call_under_transforms_raises(transform):
    fun = xf.export.deserialize(xf.export.serialize(xf.jit(torch.sum).lower(torch.ones(3))))
    with pytest.raises(
        xf.errors.UnsupportedOpError, match="no longer be differentiated or batched"
    ):
        transform(fun)(torch.ones(2, 3) if transform is xf.vmap else torch.ones(3))
    with pytest.raises(
        xf.errors.UnsupportedOpError, match="no longer be differentiated or batched"
    ):
        fun(torch.ones(3, requires_grad=True))
    equal(fun(torch.ones(3)), torch.tensor(3.0))


class Own:
    def __init__(self, x):
        self.x = x


xf.tree.register(Own, lambda o: ([o.x], None), lambda _, xs: Own(*xs))


def test_export_other_classes_in_trees_raise():
    with pytest.raises(
        TypeError, match=r"the arguments of .* hold a Own(.|\n)*dicts, lists, tuples"
    ):
        xf.export.serialize(xf.jit(lambda o: o.x).lower(Own(torch.ones(2))))
    with pytest.raises(TypeError, match=r"the result of .* hold a Own"):
        xf.export.serialize(xf.jit(Own).lower(torch.ones(2)))


def test_export_callbacks_are_refused():
    def fun(x):
        xf.debug.print("{}", x)
        return x

    with pytest.raises(xf.errors.UnsupportedOpError, match="calls back to Python"):
        xf.export.serialize(xf.jit(fun).lower(torch.ones(2)))


def damaged():
    whole = exported("mlp")
    yield "empty", b""
    yield "text", b"not a program"
    yield "cut", whole[: len(whole) // 2]
    yield "flipped", whole[:60] + bytes([whole[60] ^ 255]) + whole[61:]
    contents = {}
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        contents = {n: archive.read(n) for n in archive.namelist()}
    for name in contents:
        yield f"without {name}", packed({k: v for k, v in contents.items() if k != name})
    header = json.loads(contents["header.json"])
    yield "format", packed(contents | {"header.json": json.dumps(header | {"format": 3}).encode()})
    wrong = {"input_avals": [[[2], "float32"]], "outputs": ["odd", []], "inputs": 7, "static": "x"}
    for key in (*wrong, "output_avals"):
        changed = header | {key: wrong.get(key, [[[2], "no_dtype"]])}
        yield f"wrong {key}", packed(contents | {"header.json": json.dumps(changed).encode()})
    mesh = [["x"], [2], [2], [[0]], None]
    shardings = [
        {"meshes": [], "arrays": [[0, []], None, None]},
        {"meshes": [mesh], "arrays": [[0, [["y"]]], None, None]},
        {"meshes": [mesh], "arrays": [[0, [["x"], [], ["x"]]], None, None]},
        {"meshes": [[*mesh[:4], [0, 0]]], "arrays": [[0, [["x"]]], None, None]},
        {"meshes": [mesh], "arrays": [None]},
    ]
    for more in ({"donated": [3]}, *({"shardings": s} for s in shardings)):
        changed = json.dumps(header | more).encode()
        yield f"wrong {more}", packed(contents | {"header.json": changed})
    yield "hlo", packed(contents | {"program.hlo": contents["program.hlo"][:-100]})
    yield "no hlo", packed(contents | {"program.hlo": b"\x0a\xff"})


def packed(contents):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in contents.items():
            archive.writestr(name, data)
    return file.getvalue()


def test_deserialize_damaged_files_raises():
    for what, data in damaged():
        with pytest.raises(ValueError, match="not a program exported by xfunc") as raised:
            xf.export.deserialize(data)
        assert type(raised.value) is ValueError, what


@pytest.mark.parametrize("given", [torch.sin, xf.jit(torch.sin), "model", None])
def test_export_save_of_non_lowered_raises(given, tmp_path):
    path = tmp_path / "f.xfunc"
    path.write_bytes(b"an older program")
    with pytest.raises(TypeError, match=r"is not a lowered function[\s\S]*xf.jit\(f\).lower\(x\)"):
        xf.export.save(given, path)
    assert path.read_bytes() == b"an older program"


if __name__ == "__main__":
    DATA.mkdir(parents=True, exist_ok=True)
    for name in PROGRAMS:
        (DATA / f"{name}.xfunc").write_bytes(exported(name))
