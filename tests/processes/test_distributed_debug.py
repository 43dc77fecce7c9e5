"""`xf.debug` with values that several processes hold parts of."""

from __future__ import annotations

import json

from tests.support.fresh import Server
from tests.support.processes import free_port

PROGRAM = """
import json, sys
import torch, xfunc as xf

port, index = sys.argv[1:]
xf.distributed.initialize(f"127.0.0.1:{port}", 2, int(index))
mesh = xf.make_mesh((2,), ("data",))
x = xf.device_put(torch.arange(4.0), xf.NamedSharding(mesh, xf.P("data")))
seen = []

@xf.jit
def looked_at(x):
    xf.debug.callback(lambda v: seen.append(v.tolist()), x)
    xf.debug.print("x is {}", x + 1)
    xf.scan(lambda c, row: (c, xf.debug.callback(lambda v: seen.append(v.tolist()), row)), 0, x)
    return x.sum()

found = {"sum": looked_at(x).item(), "seen": seen}
for name, f in {
    "log": lambda x: (x - 2).log(),
    "sum": lambda x: (x - 2).log().sum(),
    "none": lambda x: x.sqrt(),
    "gradient": xf.grad(lambda x: (x - 2).sqrt().sum()),
}.items():
    try:
        with xf.debug.nans():
            xf.jit(f)(x)
    except FloatingPointError as error:
        found[f"{name} error"] = str(error).splitlines()[0]
print(json.dumps(found))
"""


def test_debug_values_of_several_processes(fresh: Server) -> None:
    port, env = free_port(), {"CPU_NUM_DEVICES": "1"}
    running = [fresh.start(PROGRAM, port, k, env=env) for k in range(2)]
    for done in [process.wait() for process in running]:
        assert done.returncode == 0, done.stderr
        assert "x is tensor([1., 2., 3., 4.])" in done.stdout
        found = json.loads(done.stdout.splitlines()[-1])
        assert found.pop("sum") == 6
        assert found.pop("seen") == [[0.0, 1.0, 2.0, 3.0], 0.0, 1.0, 2.0, 3.0]
        assert {name: said.partition("; ")[2] for name, said in found.items()} == {
            "log error": "log made the first",
            "sum error": "log made the first",
            "gradient error": "sqrt made the first",
        }
