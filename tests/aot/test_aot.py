"""Compiling for TPUs that are not there, with libtpu: what it says of small programs."""

import re
from pathlib import Path

import pytest
import torch

import xfunc as xf
from xfunc.aot import Buffer, topology_of
from xfunc.errors import CompileError, OutOfMemoryError, ShardingError

S = xf.ShapeDtypeStruct
BF16 = torch.bfloat16
LAYERS, ROWS, N = 4, 512, 1024

MESH = xf.AbstractMesh((2, 2), ("fsdp", "tensor"))
WEIGHTS = S((LAYERS, N, N), BF16, xf.NamedSharding(MESH, xf.P(None, "fsdp", "tensor")))
ROWS_OF_DATA = S((ROWS, N), BF16, xf.NamedSharding(MESH, xf.P("fsdp", None)))
OFFLOAD = xf.checkpoint_policies.save_and_offload_only_these_names(
    names_which_can_be_saved=[], names_which_can_be_offloaded=["layer input"]
)


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """A cache of results for the tests of this file."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("XFUNC_CACHE_DIR", str(folder))
        yield folder


def layer(x, w):
    return torch.tanh(x @ w)  # line of the layer


def loss(weights, x):
    def body(x, w):
        return layer(xf.checkpoint_name(x, "layer input"), w), None

    x, _ = xf.scan(body, x, weights, checkpoint_policy=OFFLOAD)  # line of the scan
    return x.float().square().mean()


def step(weights, x):
    value, grads = xf.value_and_grad(loss)(weights, x)
    return value, weights - 0.1 * grads


def line_of(comment):
    lines = Path(__file__).read_text().splitlines()
    return next(i for i, line in enumerate(lines, 1) if line.endswith(f"# {comment}"))


@pytest.fixture(scope="module")
def lowered():
    return xf.jit(step, donate_argnums=0).lower(WEIGHTS, ROWS_OF_DATA)


@pytest.fixture(scope="module")
def compiled(lowered, cache):
    return lowered.compile(target="tpu:v6e:2x2")


def test_memory_analysis_of_one_chip(compiled):
    memory = compiled.memory_analysis()
    weights, data = 2 * LAYERS * N * N // 4, 2 * ROWS * N // 2
    assert memory.argument_size_in_bytes == weights + data
    assert memory.alias_size_in_bytes == weights  # They were donated.
    assert weights < memory.output_size_in_bytes < weights + 4096
    assert memory.host_temp_size_in_bytes == LAYERS * data // 2  # divided on the other axis, too
    beside = memory.peak_memory_in_bytes - memory.temp_size_in_bytes - data
    assert beside == memory.output_size_in_bytes


@pytest.mark.slow
def test_memory_analysis_without_donation():
    undonated = xf.jit(step).lower(WEIGHTS, ROWS_OF_DATA).compile(target="v6e-4")
    assert undonated.memory_analysis().alias_size_in_bytes == 0
    assert undonated.topology == topology_of("tpu:v6e:2x2")


def test_cost_analysis(compiled):
    costs = compiled.cost_analysis()
    layer_flops = 2 * ROWS * N * N // 4
    assert layer_flops < costs["flops"] < 4 * LAYERS * layer_flops  # the body of a loop counts once
    assert costs["bytes accessed"] > 0


def test_as_text(compiled):
    text = compiled.as_text()
    assert "is_scheduled=true" in text
    assert "input_output_alias={ {1}: (0, {}, may-alias) }" in text
    assert f'source_file="{__file__}" source_line={line_of("line of the layer")}' in text


def test_largest_buffers(compiled):
    found = compiled.largest_buffers(3)
    assert [b.bytes for b in found] == sorted((b.bytes for b in found), reverse=True)
    weights = 2 * LAYERS * N * N // 4
    assert Buffer(weights, "argument", f"bf16[{LAYERS},{N // 2},{N // 2}]", "weights") in found
    (host,) = [b for b in found if b.kind == "host"]
    assert host.bytes == compiled.memory_analysis().host_temp_size_in_bytes
    assert host.op_name == "xfunc__scan.loss.<locals>.body/dynamic-slice"
    assert (host.file, host.line) == (__file__, line_of("line of the scan"))
    assert len(compiled.largest_buffers(100)) > 3


@pytest.mark.slow
def test_bfloat16_sums_accumulate_in_float32_without_copy():
    def loss(x):
        return (torch.nn.functional.layer_norm(x.softmax(1), (N,)) * x).float().mean()

    found = xf.jit(xf.grad(loss)).lower(S((4 * N, N), BF16)).compile("tpu:v6e:1x1")
    assert re.search(r"= f32\[4096\]\S* reduce\(", found.as_text() or "")
    large = [b for b in found.largest_buffers(20) or () if b.bytes >= 2 * 4 * N * N]
    assert [b.shape for b in large if "f32" in b.shape] == []


def test_serialize(compiled):
    assert len(compiled.serialize()) > 10_000


def test_call_of_compiled_for_tpu_raises(compiled):
    with pytest.raises(CompileError, match=r"step was compiled for v6e:2x2, and cannot run here"):
        compiled(torch.ones(LAYERS, N, N), torch.ones(ROWS, N))


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize("target", ["v6e:1x1", "v5p:1x1x1"])
def test_topology_memory_is_limit_of_compiler(target):
    def takes(mib):
        return xf.jit(torch.sum).lower(S((256 * mib, 8, 128), torch.float32)).compile(target)

    memory = topology_of(target).memory
    assert memory is not None
    mib = memory >> 20
    takes(mib - 20)  # newer ones keep a little more of it
    with pytest.raises(OutOfMemoryError, match="sum does not fit in the memory of a v"):
        takes(mib)


SMALL = xf.jit(lambda x: x + 1)


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"xla_fast": True}, r"No such compile option: 'xla_fast'"),
        ({"xla_tpu_scoped_vmem_limit_kib": "much"}, r"Failed to parse .*(value: |)much"),
    ],
)
def test_compile_options_refused_by_libtpu(options, says):
    lowered = SMALL.lower(S((8, 128), BF16))
    with pytest.raises(CompileError, match=rf"libtpu could not(.|\n)*{says}(.|\n)*leave the comp"):
        lowered.compile("tpu:v6e-1", options)


def test_compile_option_reaches_libtpu():
    lowered = xf.jit(lambda x: x.cumsum(0)).lower(S((4096, 1024), BF16))
    with pytest.raises(CompileError, match=r"libtpu ended by SIGABRT.*\n  \| F.*needs VMEM\n  at "):
        lowered.compile("tpu:v6e-1", {"xla_tpu_scoped_vmem_limit_kib": 8})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"xla_dump_to": "/tmp"}, r"option xla_dump_to is set by xfunc"),
        ({"a": [1]}, r"compiler_options has 'a': \[1\]"),
        ({1: "a"}, r"compiler_options has 1: 'a'"),
    ],
)
def test_compile_invalid_options(options, says):
    with pytest.raises(ValueError, match=says):
        SMALL.lower(S((8, 128), BF16)).compile("tpu:v6e-1", options)


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("tpu:v9:2x2", r"INVALID_ARGUMENT: .*v9(.|\n)*name a TPU: tpu:v6e:16x16"),
        ("tpu:v6e:3x3", r"INVALID_ARGUMENT: .*not divisible"),
    ],
)
def test_compile_unknown_topology(target, says):
    with pytest.raises(
        ValueError, match=rf"unknown target '{target}': libtpu \S+ \(jax .*\) says: {says}"
    ):
        SMALL.lower(S((8, 128), BF16)).compile(target)


def test_compile_mesh_of_other_size_raises(lowered):
    says = r"step was traced for a mesh of 4 devices, but v6e:4x4 has 16(.|\n)*Hint: make the mesh"
    with pytest.raises(ShardingError, match=says):
        lowered.compile(target="tpu:v6e-16")


def test_compile_without_results_raises():
    with pytest.raises(CompileError, match="nothing returns no tensor"):
        xf.jit(nothing).lower(S((3,), BF16)).compile("tpu:v6e-1")


def nothing(x):
    return None


def each_device_has(compiled):
    """The shapes of arguments and results in the program of a device."""
    layout = re.search(r"entry_computation_layout=\{(.*)->(.*?)\}, [a-z]", compiled.as_text())
    assert layout is not None
    return [re.findall(r"\w+\[[\d,]*\]", part) for part in layout.groups()]


TILES = S((64, 256), torch.float32, xf.NamedSharding(MESH, xf.P("fsdp", "tensor")))


def over_one_axis(x):
    def add(part):
        return xf.psum(torch.tanh(part), "tensor")

    names = {"mesh": MESH, "axis_names": {"tensor"}}
    return xf.shard_map(add, in_specs=xf.P(None, "tensor"), out_specs=xf.P(), **names)(x)


def over_both_axes(x):
    def add(part):
        return xf.psum(part, "tensor")

    return xf.shard_map(add, mesh=MESH, in_specs=TILES.sharding.spec, out_specs=xf.P("fsdp"))(x)


def turned(x):
    return xf.with_sharding_constraint(2 * x, xf.NamedSharding(MESH, xf.P("tensor")))


def alike(x):
    return xf.shard_as(torch.ones(64, 256) * x.sum(), x)[0]


@pytest.mark.sample(4, seed=0)
@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize(
    ("f", "by_gspmd", "by_shardy"),
    [
        (turned, "f32[32,256]", "f32[32,256]"),
        (alike, "f32[32,128]", "f32[32,128]"),
        (over_both_axes, "f32[32,128]", "f32[32,128]"),
        # What is left open. Before, GSPMD partitioned all programs, whatever was asked.
        (over_one_axis, "f32[64,128]", "f32[32,128]"),
    ],
)
def test_compile_shapes_by_partitioner(f, by_gspmd, by_shardy, monkeypatch):
    lowered = xf.jit(f).lower(TILES)
    for shardy, result in ((False, by_gspmd), (True, by_shardy)):
        monkeypatch.setattr(xf.config, "use_shardy_partitioner", shardy)
        found = each_device_has(lowered.compile("tpu:v6e:2x2"))
        assert found == [["f32[32,128]"], [result]]


@pytest.mark.sample(1, seed=0)
@pytest.mark.parametrize("shardy", [False, True])
def test_compile_of_convolution_with_sharded_positions_gathers_them(shardy, monkeypatch):
    # GSPMD would exchange the edges of parts by collective-permutes, for some sizes wrongly.
    monkeypatch.setattr(xf.config, "use_shardy_partitioner", shardy)
    x = S((4, 8, 64), torch.float32, xf.NamedSharding(MESH, xf.P("fsdp", None, "tensor")))
    f = xf.jit(lambda x, w: torch.nn.functional.conv1d(x, w, stride=2, padding=1))
    text = f.lower(x, S((8, 8, 3), torch.float32)).compile("tpu:v6e:2x2").as_text()
    assert text is not None
    assert "all-gather" in text
    assert "collective-permute" not in text


@pytest.mark.slow
def test_compile_step_by_shardy(compiled, lowered, monkeypatch):
    before = xf.config.use_shardy_partitioner  # which `compiled` was compiled with
    monkeypatch.setattr(xf.config, "use_shardy_partitioner", not before)
    other = lowered.compile("tpu:v6e:2x2")
    by_shardy, compiled = (compiled, other) if before else (other, compiled)
    assert by_shardy.serialize() != compiled.serialize()
    assert each_device_has(by_shardy) == each_device_has(compiled)
    ours, theirs = by_shardy.memory_analysis(), compiled.memory_analysis()
    for part in ("argument", "output", "alias", "host_temp"):
        name = f"{part}_size_in_bytes"
        assert getattr(ours, name) == getattr(theirs, name), name
