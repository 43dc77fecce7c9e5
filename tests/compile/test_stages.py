"""Text, analyses, compiling, the names in HLO, profiles, and what survives on disk."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import xfunc as xf
from tests.support.fresh import Server

S = xf.ShapeDtypeStruct
F32 = torch.float32
SQUARE = S((4, 4), F32)


def tower(x, w):
    with xf.named_scope("up"):
        h = torch.tanh(x @ w)  # line of tanh
    return h.sum()  # line of sum


@xf.named_scope("decorated")
def decorated(x):
    return x.sin()


def instructions(text, opcode):
    found = [line for line in text.splitlines() if re.search(rf"\s{opcode}\(", line)]
    assert found, f"no {opcode} in\n{text}"
    return found


def line_of(comment):
    lines = Path(__file__).read_text().splitlines()
    return next(i for i, line in enumerate(lines, 1) if line.endswith(f"# line of {comment}"))


def is_at(instruction, name, comment):
    return (
        f'op_name="{name}"' in instruction
        and f'source_file="{__file__}" source_line={line_of(comment)}' in instruction
    )


# -- names and lines ------------------------------------------------------------------------------


def test_lower_names_scope_file_and_line():
    text = xf.jit(tower).lower(SQUARE, SQUARE).as_text()
    assert is_at(instructions(text, "tanh")[0], "up/aten__tanh", "tanh")
    assert is_at(instructions(text, "dot")[0], "up/aten__mm", "tanh")
    assert is_at(instructions(text, "reduce")[0], "aten__sum", "sum")


def test_named_scope_nests_and_decorates():
    def fun(x):
        with xf.named_scope("a"), xf.named_scope("b"):
            y = decorated(x)
        return y.cos()

    text = xf.jit(fun).lower(SQUARE).as_text()
    assert 'op_name="a/b/decorated/aten__sin"' in instructions(text, "sine")[0]
    assert 'op_name="aten__cos"' in instructions(text, "cosine")[0]


@pytest.mark.parametrize(
    "transform",
    [
        lambda f: xf.grad(f, argnums=1),
        lambda f: xf.grad(xf.jit(f), argnums=1),
        lambda f: lambda x, w: xf.vjp(f, x, w)[1](torch.ones(()))[1],
        lambda f: xf.vmap(xf.grad(f, argnums=1), in_axes=(None, None), axis_size=2),
    ],
)
def test_grad_backward_has_scope_and_line_of_forward(transform):
    text = xf.jit(transform(tower)).lower(SQUARE, SQUARE).as_text()
    dots = instructions(text, "dot")
    assert is_at(dots[0], "up/aten__mm", "tanh") or is_at(dots[0], "up/aten__bmm", "tanh")
    backward = [d for d in dots if 'op_name="transpose(up)/' in d]
    assert backward
    assert all(f"source_line={line_of('tanh')}" in d for d in backward)


def test_named_scope_in_scan_and_nested_jit():
    def body(c, _):
        with xf.named_scope("step"):
            return xf.jit(decorated)(c), None

    text = xf.jit(lambda x: xf.scan(body, x, length=3)[0]).lower(SQUARE).as_text()
    assert 'op_name="decorated/aten__sin"' in instructions(text, "sine")[0]
    assert 'op_name="step/xfunc__decorated"' in instructions(text, "call")[0]


def test_named_scope_of_each_call_of_nested_jit():
    inner = xf.jit(decorated)

    def fun(x):
        with xf.named_scope("first"):
            y = inner(x)
        with xf.named_scope("second"):
            return x @ inner(y)

    text = xf.jit(fun).lower(SQUARE).compile().as_text() or ""
    for place in ("first", "second"):
        assert f'op_name="{place}/xfunc__decorated/decorated/aten__sin"' in text


def test_named_scope_ends_after_exception():
    with pytest.raises(ZeroDivisionError, match="division"), xf.named_scope("open"):
        _ = 1 / 0
    text = xf.jit(torch.sin).lower(SQUARE).as_text()
    assert 'op_name="aten__sin"' in instructions(text, "sine")[0]


@pytest.mark.usefixtures("executables_not_kept")  # one that is kept names where it was compiled
def test_compile_names_scope_file_and_line():
    text = xf.jit(tower).lower(SQUARE, SQUARE).compile().as_text()
    assert is_at(instructions(text, "tanh")[0], "up/aten__tanh", "tanh")


@pytest.mark.parametrize("name", ["", None, 3])
def test_named_scope_invalid_name(name):
    with pytest.raises(TypeError, match="named_scope was given"), xf.named_scope(name):
        pass


def test_named_scope_does_not_retrace():
    fun = xf.jit(lambda x: x.sin())
    with xf.named_scope("first"):
        fun(torch.ones(3))
    fun(torch.ones(3))
    assert fun.cache_info().traces == 1


# -- text and analyses ----------------------------------------------------------------------------


def test_lower_as_stablehlo():
    def fun(used, unused, p):
        return p["b"] @ used, xf.scan(lambda c, _: (c * 2, None), used, length=3)[0]

    lowered = xf.jit(fun).lower(S((4, 5), F32), S((7,), F32), {"b": S((3, 4), F32)})
    text = lowered.as_text("stablehlo")
    main = next(line for line in text.splitlines() if "func.func @main" in line)
    assert re.findall(r"tensor<\w+>", main.split("->")[0]) == [
        "tensor<4x5xf32>",
        "tensor<7xf32>",
        "tensor<3x4xf32>",
    ]
    for operation in ("dot(_general)?", "while", "multiply"):
        assert re.search(rf"stablehlo\.{operation} ", text.replace("(", " "))
    with pytest.raises(ValueError, match="unknown dialect 'mhlo'"):
        lowered.as_text("mhlo")


def test_cost_analysis():
    lowered = xf.jit(torch.matmul).lower(S((8, 16), F32), S((16, 4), F32))
    want = {"flops": 1024.0, "transcendentals": 0.0, "bytes accessed": 896.0}
    assert lowered.cost_analysis() == want
    assert lowered.compile().cost_analysis() == want
    assert xf.jit(lambda: None).lower().cost_analysis()["flops"] == 0


def test_cost_analysis_of_compiled_scan():
    def fun(c, w):
        return xf.scan(lambda c, _: (torch.tanh(c @ w), None), c, length=50)[0]

    compiled = xf.jit(fun).lower(SQUARE, SQUARE).compile()
    found = compiled.cost_analysis()
    assert found is not None
    assert found["transcendentals"] == 50 * 16
    assert found["flops"] >= 50 * 128


def test_memory_analysis():
    def fun(x, y):
        return x + 1, (x @ y).sum()

    args = S((32, 64), F32), S((64, 16), F32)
    found = xf.jit(fun).lower(*args).compile().memory_analysis()
    assert found is not None
    assert found.argument_size_in_bytes == 4 * (32 * 64 + 64 * 16)
    assert found.output_size_in_bytes is not None
    assert found.output_size_in_bytes >= 4 * (32 * 64 + 1)
    assert found.alias_size_in_bytes == found.host_temp_size_in_bytes == 0
    assert found.temp_size_in_bytes is not None
    assert found.temp_size_in_bytes >= 4 * 32 * 16


def test_memory_analysis_of_donated_arguments():
    kept, donated = (
        xf.jit(torch.neg, donate_argnums=d).lower(S((32, 64), F32)).compile().memory_analysis()
        for d in ((), 0)
    )
    assert kept is not None
    assert donated is not None
    assert (kept.alias_size_in_bytes, donated.alias_size_in_bytes) == (0, 4 * 32 * 64)
    assert kept.peak_memory_in_bytes is not None
    assert donated.peak_memory_in_bytes is not None
    assert kept.peak_memory_in_bytes - donated.peak_memory_in_bytes == 4 * 32 * 64


def test_compile_programs_of_same_name():
    compiled = [xf.jit(decorated).lower(S((n,), F32)).compile() for n in (3, 5)]
    for n, c in zip((3, 5), compiled, strict=True):
        assert f"f32[{n}]" in (c.as_text() or "")
        assert c.memory_analysis().argument_size_in_bytes == 4 * n


def test_compiled_serialize_round_trip():
    compiled = xf.jit(decorated).lower(S((3,), F32)).compile()
    again = xf.export.deserialize(compiled.serialize())
    x = torch.arange(3.0)
    assert torch.equal(again(x), compiled(x))


@pytest.mark.torch_xla
def test_compile_target_and_options():
    lowered = xf.jit(decorated).lower(SQUARE)
    with pytest.raises(ValueError, match=r"unknown target 'abacus'(.|\n)*Hint: leave it out"):
        lowered.compile("abacus")
    with pytest.raises(ValueError, match=r"no compiler options(.|\n)*XLA_FLAGS"):
        lowered.compile(compiler_options={"xla_fast": True})
    assert lowered.compile(None, compiler_options={}) is not None


# -- profiles -------------------------------------------------------------------------------------


@pytest.mark.torch_xla
def test_profile_on_torch_xla(tmp_path):
    fun = xf.jit(tower)
    recorded = profile(tmp_path, fun)
    for name in ("my step", "tower.", "up/aten__tanh", __file__):
        assert name.encode() in recorded
    with xf.profiler.trace(tmp_path / "again"):  # XLA has one session at a time.
        assert fun.lower(SQUARE, SQUARE).compile().as_text() is None
    assert list((tmp_path / "again").glob("plugins/profile/*/*.xplane.pb"))


@pytest.mark.usefixtures("pjrt", "executables_not_kept")
def test_profile_on_pjrt(tmp_path):
    recorded = profile(tmp_path, xf.jit(tower))
    path = "jit(tower)/call_exported/up/aten__tanh"
    for name in ("my step", "step_num", "jit_tower", path, __file__):
        assert name.encode() in recorded
    # A name with characters that XLA's have not.
    recorded = profile(tmp_path / "again", xf.jit(xf.grad(lambda x, y: (x * y).sum())))
    assert b"jit_grad_test_profile_on_pjrt._locals_._lambda" in recorded


def profile(folder, fun):
    """What is recorded of a call."""
    args = torch.ones(4, 4), torch.ones(4, 4)
    with xf.profiler.trace(folder):
        with xf.profiler.annotate("my step", step_num=7654):
            fun(*args)
        other = folder / "other"
        with pytest.raises(RuntimeError, match="already being recorded"), xf.profiler.trace(other):
            pass
    assert not other.exists()
    assert list(folder.glob("plugins/profile/*/*.trace.json.gz"))
    (file,) = folder.glob("plugins/profile/*/*.xplane.pb")
    return file.read_bytes()


def test_profile_to_unwritable_folder(tmp_path):
    (tmp_path / "file").write_text("")
    folder: Any
    for folder, kind, problem in (
        (tmp_path / "file", FileExistsError, "cannot write into .*: File exists"),
        (tmp_path / "file" / "inner", NotADirectoryError, "cannot write into .*: Not a directory"),
        (None, TypeError, "profiler.trace was given None"),
    ):
        with (
            pytest.raises(kind, match=rf"{problem}(.|\n)*Hint"),
            xf.profiler.trace(folder),
        ):
            raise AssertionError("the block runs")


# -- what survives on disk ------------------------------------------------------------------------

PERSISTENT = """if True:
    import torch, xfunc as xf
    print(xf.jit(lambda x: x.sin().sum())(torch.zeros(3)).item())
    import torch_xla.debug.metrics as metrics
    print(*(n for n in metrics.counter_names() if n.startswith("Persistent")))
"""


@pytest.mark.sample(7, seed=0)
@pytest.mark.torch_xla
def test_torch_xla_persistent_cache_cannot_load_on_cpu(tmp_path: Path, fresh: Server) -> None:
    """torch_xla's persistent cache fills, and every program in it is compiled again.

    When this fails, the client has learnt to load: say so in docs/inspection.md, and offer it.
    """

    def run() -> tuple[list[str], str]:
        done = fresh.run(PERSISTENT, env={"XLA_PERSISTENT_CACHE_PATH": str(tmp_path)})
        assert done.returncode == 0, done.stderr
        return done.stdout.split()[1:], done.stderr

    assert run()[0] == ["PersistentCacheMiss"]
    assert list(tmp_path.iterdir())
    counters, log = run()
    assert counters == ["PersistentCacheDeserializeFailure"]
    assert "Deserializing serialized executable not supported" in log
