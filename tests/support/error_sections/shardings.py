"""Errors about shardings that do not fit: see `error_cases`."""

# ruff: noqa: E501 (a line of a message is as long as it is)

from tests.support.error_sections.case import Case, Section

SHARDINGS = Section(
    "ShardingError",
    "*(ValueError)* A sharding does not fit its mesh, its array or the place it is used in. See [sharding](sharding.md).",
    [
        Case(
            "A dimension is no multiple of the devices that it is divided over.",
            """\
mesh = xf.AbstractMesh((4, 2), ("data", "tensor"))
weights = xf.ShapeDtypeStruct((30, 16), torch.float32, xf.NamedSharding(mesh, xf.P("data")))
xf.jit(torch.square).lower(weights)
""",
            """\
ShardingError: argument 0 of square of shape (30, 16) cannot be divided as P('data') says: its dimension 0 is 30, which is no multiple of 4 (data=4)
  at example.py:3 in <module>: xf.jit(torch.square).lower(weights)
Hint: pad or change that dimension, or divide it over fewer devices.""",
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
            "There are fewer devices than the mesh has.",
            """\
xf.make_mesh((4, 2), ("data", "tensor"))
""",
            """\
ShardingError: AbstractMesh(data=4, tensor=2) is too large for this machine: it has 8 devices, and there are 1
  at example.py:1 in <module>: xf.make_mesh((4, 2), ("data", "tensor"))
Hint: change the sizes; on the CPU, xf.config.set_cpu_devices(n) or CPU_NUM_DEVICES=n before the start makes n devices; to lower for devices that are not here, use xf.sharding.AbstractMesh.""",
            """\
xf.AbstractMesh((4, 2), ("data", "tensor"))
""",
        ),
        Case(
            "A program for a mesh that is not here can be lowered, and not run.",
            """\
mesh = xf.AbstractMesh((4,), ("data",))
sharding = xf.NamedSharding(mesh, xf.P("data"))
double = xf.jit(lambda x: xf.with_sharding_constraint(2 * x, sharding))
double(torch.ones(8))
""",
            """\
ShardingError: <lambda> was traced for a mesh of 4 devices, and there are 1
  at example.py:4 in <module>: double(torch.ones(8))
Hint: run it on a mesh of the devices that are there (xf.sharding.make_mesh); an AbstractMesh is for lowering.""",
            """\
double.lower(torch.ones(8)).as_text()
""",
        ),
        Case(
            "A spec alone means the mesh in use.",
            """\
xf.device_put(torch.ones(8), xf.P("data"))
""",
            """\
ShardingError: sharding of x is P('data'), and no mesh is in use
  at example.py:1 in <module>: xf.device_put(torch.ones(8), xf.P("data"))
Hint: pass NamedSharding(mesh, spec), or call in a block of `with xf.sharding.use_mesh(mesh):`.""",
            """\
with xf.use_mesh(xf.make_mesh((1,), ("data",))):
    xf.device_put(torch.ones(8), xf.P("data"))
""",
        ),
        Case(
            "Collectives are for functions of one device's part.",
            """\
@xf.jit
def mean(x):
    return xf.pmean(x, "data")

mean(torch.ones(4))
""",
            """\
ShardingError: pmean over 'data' is called outside of a shard_map, where there are no axes
  at example.py:3 in mean: return xf.pmean(x, "data")
Hint: call it in a function that is given to xf.shard_map, or to xf.vmap(..., axis_name='data').""",
            """\
mesh = xf.make_mesh((1,), ("data",))
mean = xf.shard_map(mean, mesh=mesh, in_specs=xf.P("data"), out_specs=xf.P())
mean(torch.ones(4))
""",
        ),
        Case(
            "What a shard_map returns whole must be the same on each device.",
            """\
mesh = xf.AbstractMesh((4,), ("data",))
local = xf.shard_map(lambda x: x.sum(), mesh=mesh, in_specs=xf.P("data"), out_specs=xf.P())
xf.jit(local).lower(torch.ones(8))
""",
            """\
ShardingError: shard_map of <lambda>: the result has the spec P(), which does not name 'data', and may differ between the devices along that axis
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
ShardingError: <lambda> was traced for a mesh of 8 devices, and v6e:2x2 has 4
  at example.py:4 in <module>: total.lower(rows).compile(target="tpu:v6e-4")
Hint: make the mesh as large as the topology, or name another topology.""",
        ),
        Case(
            "A collective names an axis that nothing around it has.",
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
