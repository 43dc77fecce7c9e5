"""Compiling ahead of time: what is asked, and what libtpu refuses."""

from pathlib import Path
from typing import Any

import pytest
import torch

import xfunc as xf
from tests.internals.aot import aot_worker
from tests.internals.aot.aot_worker import ANSWERS, SHAPES, lower, program, request
from tests.internals.aot.aot_worker import asked as asked
from tests.internals.aot.aot_worker import folder as folder
from tests.internals.aot.aot_worker import worker as worker
from xfunc import P
from xfunc.aot import topology_of
from xfunc.backends.errors import compile_error
from xfunc.errors import CompileError, OutOfMemoryError
from xfunc.hlo import Module

pytestmark = pytest.mark.quick

# -- what is compiled -----------------------------------------------------------------------------


def test_request_of_lowered_function(asked):
    compiled = lower().compile("v6e-1", {"xla_fast": 1})
    (made,) = asked
    assert (made.arguments, made.donated, made.options) == (("x", "w"), (1,), {"xla_fast": 1})
    assert compiled.memory_analysis().peak_memory_in_bytes == 7 + 5 - 2 + 3
    assert compiled.cost_analysis() == {"flops": 1.0}
    assert compiled.as_text() is None
    assert compiled.largest_buffers() == []


def test_request_module_keeps_tpu_annotations(asked):
    lower().compile("v6e-1")
    assert b"annotate_device_placement" in asked[0].module
    assert b"opt-barrier" in asked[0].module


def convolved_and_scattered(x, w, into, index):
    convolved = torch.nn.functional.conv1d(x, w, padding=1)
    return convolved, into.scatter_reduce(0, index, index.float(), "amax")


def lower_sharded():
    mesh = xf.AbstractMesh((2, 2), ("a", "b"))
    sharded = xf.NamedSharding(mesh, P("a", None, "b"))
    return xf.jit(convolved_and_scattered).lower(
        xf.ShapeDtypeStruct((4, 8, 64), torch.float32, sharded),
        xf.ShapeDtypeStruct((8, 8, 3), torch.float32),
        xf.ShapeDtypeStruct((3, 5), torch.float32),
        xf.ShapeDtypeStruct((3, 5), torch.int64),
    )


@pytest.mark.parametrize("shardy", [False, True])
def test_request_module_is_prepared_for_partitioner(asked, monkeypatch, shardy):
    monkeypatch.setattr(xf.config, "use_shardy_partitioner", shardy)
    lower_sharded().compile("v6e:2x2")
    entry = Module.from_bytes(asked[0].module).entry
    (scatter,) = (i for i in entry.instructions if i.opcode == "scatter")
    _, indices, updates = scatter.operands
    assert indices.opcode == "opt-barrier"
    assert indices.shape.dtype == torch.int32
    assert updates.shape.dims == (4, 8), "what four devices divide evenly"
    (convolution,) = (i for i in entry.instructions if i.opcode == "convolution")
    assert [i.opcode for i in convolution.operands] == ["custom-call"] * 2


def test_request_module_of_one_chip_is_not_prepared_for_partitioner(asked):
    args = [xf.ShapeDtypeStruct((3, 5), torch.int64)] * 2
    xf.jit(lambda x, i: x.scatter_add(0, i, i)).lower(*args).compile("v6e-1")
    assert b"opt-barrier" not in asked[0].module


def test_request_key_ignores_lines(asked):
    file = aot_worker.__file__
    source = Path(file).read_text()
    above = "\n" * 5 + source
    for text in (source, above):
        namespace: dict[str, Any] = {"__name__": aot_worker.__name__}
        exec(compile(text, file, "exec"), namespace)
        namespace["lower"]().compile("v6e-1")
    first, second = asked
    assert first.key() == second.key()
    assert [(name, line + 5) for name, line in first.lines] == [*second.lines]
    assert {name for name, _ in first.lines} == {file}


def test_request_keys_differ():
    asked = [
        request(),
        request(module=b"another"),
        request(topology=topology_of("v5e-1")),
        request(options={"xla_fast": 1}),
    ]
    keys = [r.key("1") for r in asked] + [asked[0].key("2")]
    assert len({*keys}) == len(keys)


# -- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "required", "limit"),
    [
        (
            "RESOURCE_EXHAUSTED: Allocation (size=68719476736) would exceed memory "
            "(size=33822867456) :: #allocation7 [shape = 'bf16[64]', space=hbm, size = 0xff]",
            64 * 2**30,
            33822867456,
        ),
        (
            "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: the program's usage (174.50G) exceeds "
            "available HBM (31.25G).",
            int(174.5 * 2**30),
            int(31.25 * 2**30),
        ),
        (
            "RESOURCE_EXHAUSTED: Compilation failure: Aborting compilation early because it's "
            "unlikely to have enough device memory. Requires 64.50G, has 31.25G available.",
            int(64.5 * 2**30),
            int(31.25 * 2**30),
        ),
        (
            "RESOURCE_EXHAUSTED: Ran out of memory in memory space host. Used 2.00T of 1.50T host.",
            2 * 2**40,
            3 * 2**39,
        ),
        (
            "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 40.00G of 31.25G hbm. "
            "Largest allocations: 3M, space=vmem",
            40 * 2**30,
            int(31.25 * 2**30),
        ),
        ("RESOURCE_EXHAUSTED: No space left on device", None, None),
    ],
)
def test_compile_error_out_of_memory_figures(said, required, limit):
    error = compile_error("step", said)
    assert isinstance(error, OutOfMemoryError)
    assert (error.required_bytes, error.limit_bytes) == (required, limit)


def test_compile_out_of_memory_without_figures(worker):
    report = {"refusal": "RESOURCE_EXHAUSTED: no details\n\na list"}
    worker(ANSWERS.format(report=report, text=""))
    with pytest.raises(OutOfMemoryError, match=r"of a chip: RESOURCE_EXHAUSTED: no details\n  at"):
        xf.jit(program).lower(*SHAPES).compile("v6e-1")


@pytest.mark.parametrize(
    "said",
    [
        "RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem while allocating on stack for "
        "%fusion. Scoped allocation with size 17.00M and limit 16.00M exceeded scoped vmem limit",
        "RESOURCE_EXHAUSTED: Allocation (size=9) would exceed memory (size=8) :: [space=smem]",
    ],
)
def test_compile_error_on_chip_memory(said):
    error = compile_error("step", said)
    assert type(error) is CompileError
    assert str(error).startswith(f"a part of step does not fit into on-chip memory: {said}")


# -- partitioners ---------------------------------------------------------------------------------


def test_request_partitioner_setting(asked, monkeypatch):
    mesh = xf.AbstractMesh((2, 2), ("a", "b"))
    over = {axis: xf.NamedSharding(mesh, P(axis)) for axis in ("a", "b")}
    x = xf.ShapeDtypeStruct((8, 8), torch.float32, over["a"])
    lowered = xf.jit(lambda x: xf.with_sharding_constraint(x + 1, over["b"])).lower(x)
    keys = set()
    for shardy in (False, True):
        monkeypatch.setattr(xf.config, "use_shardy_partitioner", shardy)
        lowered.compile("v6e:2x2")
        sent = asked[-1]
        keys.add(sent.key())
        assert sent.settings["shardy"] is shardy
        assert (b"xla.sdy.meshes" in sent.module) is shardy
    assert len(keys) == 2


def test_request_unlike_meshes_use_gspmd(asked, monkeypatch):
    meshes = (xf.AbstractMesh(shape, ("a", "b")) for shape in ((2, 3), (3, 2)))
    first, second = (xf.NamedSharding(m, P("b", "a")) for m in meshes)
    x = xf.ShapeDtypeStruct((6, 6), torch.float32, first)
    monkeypatch.setattr(xf.config, "use_shardy_partitioner", True)
    xf.jit(lambda x: xf.with_sharding_constraint(x + 1, second)).lower(x).compile("v6e:2x3")
    assert asked[-1].settings["shardy"] is False


@xf.jit
def waves(x):
    return x.sin() * x.cos()


@pytest.mark.parametrize("shardy", [False, True])
def test_request_keeps_calls(asked, monkeypatch, shardy):
    """XLA inlines them, and names what they call by their scopes, too."""
    x = xf.ShapeDtypeStruct(
        (8, 8), torch.float32, xf.NamedSharding(xf.AbstractMesh((4,), "a"), P("a"))
    )
    monkeypatch.setattr(xf.config, "use_shardy_partitioner", shardy)
    xf.jit(lambda x: waves(waves(x))).lower(x).compile("v6e:2x2")
    found = Module.from_bytes(asked[-1].module).entry.instructions
    assert [i.proto.metadata.op_name for i in found if i.opcode == "call"] == ["xfunc__waves"] * 2
