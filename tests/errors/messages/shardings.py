"""Errors about shardings that do not fit."""

# ruff: noqa: E501 (a line of a message is as long as it is)

from tests.errors.messages.case import Case, Section

SHARDINGS = Section(
    "ShardingError",
    "*(ValueError)* A sharding does not fit its mesh, its array or the place where it is used. See [sharding](sharding.md).",
    [
        Case(
            "A dimension is not a multiple of the number of devices that it is sharded over.",
            """\
mesh = xf.AbstractMesh((4, 2), ("data", "tensor"))
weights = xf.ShapeDtypeStruct((30, 16), torch.float32, xf.NamedSharding(mesh, xf.P("data")))
xf.jit(torch.square).lower(weights)
""",
            """\
ShardingError: argument 0 of square of shape (30, 16) cannot be sharded as P('data') says: its dimension 0 is 30, which is not a multiple of 4 (data=4)
  at example.py:3 in <module>: xf.jit(torch.square).lower(weights)
Hint: pad or change that dimension, or shard it over fewer devices; if its size is a Dim, declare it with multiple_of=4.""",
            """\
weights = xf.ShapeDtypeStruct((32, 16), torch.float32, xf.NamedSharding(mesh, xf.P("data")))
xf.jit(torch.square).lower(weights)
""",
        ),
        Case(
            "The mesh has no such axis.",
            """\
mesh = xf.AbstractMesh((4, 2), ("data", "tensor"))
xf.NamedSharding(mesh, xf.P("model"))
""",
            """\
ShardingError: P('model'): AbstractMesh(data=4, tensor=2) has no axis 'model'
  at example.py:2 in <module>: xf.NamedSharding(mesh, xf.P("model"))
Hint: its axes are 'data', 'tensor'.""",
            """\
xf.NamedSharding(mesh, xf.P("tensor"))
""",
        ),
        Case(
            "The mesh has more devices than the machine.",
            """\
xf.make_mesh((4, 2), ("data", "tensor"))
""",
            """\
ShardingError: Mesh(data=4, tensor=2) needs 8 devices, but this process has 1
  at example.py:1 in <module>: xf.make_mesh((4, 2), ("data", "tensor"))
Hint: change the sizes; on the CPU, xf.config.set_cpu_devices(n) or CPU_NUM_DEVICES=n before the start makes n devices; to lower for devices that are not available, use xf.sharding.AbstractMesh.""",
            """\
xf.AbstractMesh((4, 2), ("data", "tensor"))
""",
        ),
        Case(
            "A program for a mesh that is not available can be lowered, but not run.",
            """\
mesh = xf.AbstractMesh((4,), ("data",))
sharding = xf.NamedSharding(mesh, xf.P("data"))
double = xf.jit(lambda x: xf.with_sharding_constraint(2 * x, sharding))
double(torch.ones(8))
""",
            """\
ShardingError: <lambda> was traced for a mesh of 4 devices, but this process has 1
  at example.py:4 in <module>: double(torch.ones(8))
Hint: run it on a mesh of available devices (xf.sharding.make_mesh); an AbstractMesh is only for lowering.""",
            """\
double.lower(torch.ones(8)).as_text()
""",
        ),
        Case(
            "A spec without a mesh refers to the mesh in use.",
            """\
xf.device_put(torch.ones(8), xf.P("data"))
""",
            """\
ShardingError: sharding of x is P('data'), but no mesh is in use
  at example.py:1 in <module>: xf.device_put(torch.ones(8), xf.P("data"))
Hint: pass NamedSharding(mesh, spec), or call in a block of `with xf.sharding.use_mesh(mesh):`.""",
            """\
with xf.use_mesh(xf.make_mesh((1,), ("data",))):
    xf.device_put(torch.ones(8), xf.P("data"))
""",
        ),
        Case(
            "Collectives are for functions of one device's shard.",
            """\
@xf.jit
def mean(x):
    return xf.pmean(x, "data")

mean(torch.ones(4))
""",
            """\
ShardingError: pmean over 'data' is called outside a shard_map, where there are no axes
  at example.py:3 in mean: return xf.pmean(x, "data")
Hint: call it in a function that is given to xf.shard_map, or to xf.vmap(..., axis_name='data').""",
            """\
mesh = xf.make_mesh((1,), ("data",))
mean = xf.shard_map(mean, mesh=mesh, in_specs=xf.P("data"), out_specs=xf.P())
mean(torch.ones(4))
""",
        ),
        Case(
            "A result that a shard_map returns as replicated must be the same on each device.",
            """\
mesh = xf.AbstractMesh((4,), ("data",))
local = xf.shard_map(lambda x: x.sum(), mesh=mesh, in_specs=xf.P("data"), out_specs=xf.P())
xf.jit(local).lower(torch.ones(8))
""",
            """\
ShardingError: shard_map of <lambda at example.py:2>: the result has the spec P(), which does not name 'data', and may differ between the devices along that axis
  at example.py:3 in <module>: xf.jit(local).lower(torch.ones(8))
Hint: name 'data' in out_specs, make it the same with a collective such as xf.sharding.psum(x, 'data'), or pass check_vma=False if you know that it is.""",
            """\
total = lambda x: xf.psum(x.sum(), "data")
xf.jit(xf.shard_map(total, mesh=mesh, in_specs=xf.P("data"), out_specs=xf.P())).lower(torch.ones(8))
""",
        ),
        Case(
            "A program is compiled for a TPU that has fewer chips than its mesh.",
            """\
mesh = xf.AbstractMesh((8,), ("data",))
rows = xf.ShapeDtypeStruct((64, 128), torch.bfloat16, xf.NamedSharding(mesh, xf.P("data")))
total = xf.jit(lambda x: x.sum())
total.lower(rows).compile(target="tpu:v6e-4")
""",
            """\
ShardingError: <lambda> was traced for a mesh of 8 devices, but v6e:2x2 has 4
  at example.py:4 in <module>: total.lower(rows).compile(target="tpu:v6e-4")
Hint: make the mesh as large as the topology, or name another topology.""",
        ),
        Case(
            "A collective names an axis that no enclosing transform has.",
            """\
xf.vmap(lambda x: xf.psum(x, "j"), axis_name="i")(torch.ones(3))
""",
            """\
ShardingError: psum over 'j': no vmap or shard_map around it has an axis 'j'
  at example.py:1 in <lambda>: xf.vmap(lambda x: xf.psum(x, "j"), axis_name="i")(torch.ones(3))
Hint: name those of the vmaps around it, 'i'.""",
            """\
xf.vmap(lambda x: xf.psum(x, "i"), axis_name="i")(torch.ones(3))
""",
        ),
    ],
)

DAMAGED = Section(
    "DamagedCheckpointError",
    "*(ValueError)* A file of a [checkpoint](checkpoints.md) is missing, truncated or changed; `file` is its path.",
    [
        Case(
            "A file was truncated.",
            """\
import tempfile

folder = tempfile.mkdtemp()
xf.sharding.save_checkpoint(f"{folder}/100", torch.ones(3))
xf.sharding.save_checkpoint(f"{folder}/200", torch.ones(3))
with open(f"{folder}/200/__0_0.distcp", "ab") as file:
    file.truncate(100)

xf.sharding.load_checkpoint(f"{folder}/200", torch.zeros(3))
""",
            """\
DamagedCheckpointError: the checkpoint at .../200 is damaged: __0_0.distcp has 100 bytes, and was written with ...
  at example.py:9 in <module>: xf.sharding.load_checkpoint(f"{folder}/200", torch.zeros(3))
Hint: use an older checkpoint, or a copy of this one.""",
            """\
xf.sharding.load_checkpoint(f"{folder}/100", torch.zeros(3))
""",
        ),
    ],
)

UNWRITTEN = Section(
    "CheckpointWriteError",
    "*(OSError)* A [checkpoint](checkpoints.md) could not be written. `errno` is the system's error number, such as `errno.ENOSPC` for a full disk.",
    [
        Case(
            "The folder cannot be created.",
            """\
xf.sharding.save_checkpoint("/dev/null/100", torch.ones(3))
""",
            """\
CheckpointWriteError: the checkpoint /dev/null/100 could not be written: [Errno 20] Not a directory: '/dev/null/100.partial'
  at example.py:1 in <module>: xf.sharding.save_checkpoint("/dev/null/100", torch.ones(3))
Hint: free some space or fix the file system, and save again; earlier checkpoints are unchanged.""",
            """\
import tempfile

xf.sharding.save_checkpoint(tempfile.mkdtemp() + "/100", torch.ones(3))
""",
        ),
    ],
)
