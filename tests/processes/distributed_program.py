"""What each of several processes does: `test_distributed.py` starts them.

Each is given FOLDER ADDRESS NUMBER COUNT, and writes what it found to ``FOLDER/NUMBER.json``. With
the address ``torchrun`` it is left to xfunc to find out who the others are.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, cast

import torch

import xfunc as xf
from tests.support.processes import raised
from xfunc.sharding import NamedSharding, P


def loss(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x @ w).square().mean()


def weights() -> torch.Tensor:
    return torch.arange(64.0).reshape(8, 8).sin()


def rows() -> torch.Tensor:
    return torch.arange(128.0).reshape(16, 8).cos()


def main(folder: Path, address: str, number: int, count: int) -> dict[str, Any]:
    if address == "torchrun":
        xf.distributed.initialize()
    else:
        xf.distributed.initialize(address, count, number)
    found: dict[str, Any] = {}
    k = xf.process_index()
    found["counts"] = [xf.process_count(), k, xf.device_count(), xf.default_backend()]
    found["twice"] = raised(xf.distributed.initialize)
    mesh = xf.make_mesh((xf.device_count() // 2, 2), ("data", "tensor"))
    split = NamedSharding(mesh, P("data"))

    n = 16 // count
    x = xf.make_array_from_process_local_data(split, rows()[k * n : (k + 1) * n])
    found["shape"] = list(x.shape)
    indices = [
        xf.sharding.process_local_indices(s, (16, 8))
        for s in (split, NamedSharding(mesh, P(None, "data")))
    ]
    found["indices"] = [[places.tolist() for places in each] for each in indices]
    w = xf.device_put(weights(), NamedSharding(mesh, P("tensor", "data")))
    step = xf.jit(xf.value_and_grad(loss))
    value, grad = step(w, x)
    found["loss"] = xf.device_get(value).item()
    found["read"] = raised(lambda: xf.device_get(x))
    found["shown"] = repr(x)
    found["grad"] = xf.distributed.process_allgather(grad).tolist()
    found["spec"] = str(xf.sharding_of(x))

    def block(x: torch.Tensor) -> torch.Tensor:
        return xf.psum(xf.ppermute(x, "data", [(0, 1), (1, 0)]), "data")

    summed = xf.shard_map(block, mesh=mesh, in_specs=P("data"), out_specs=P())
    if mesh.shape["data"] == 2:
        found["psum"] = xf.device_get(xf.jit(summed)(x)).tolist()

    given: list[list[int]] = []

    def twice(x: torch.Tensor) -> torch.Tensor:
        given.append(list(x.shape))
        return 2 * x

    def with_calls(x: torch.Tensor) -> torch.Tensor:
        doubled = xf.pure_callback(twice, x, x)
        total = (doubled - x).sum()
        xf.debug.print("the sum is {total:.4f}", total=total)
        return total

    found["called"] = xf.device_get(xf.jit(with_calls)(x)).item(), given.copy()
    local = xf.shard_map(
        lambda x: xf.pure_callback(twice, x, x), mesh=mesh, in_specs=P("data"), out_specs=P("data")
    )
    gather = xf.distributed.process_allgather
    del given[:]
    found["called in parts"] = gather(xf.jit(local)(x)).tolist(), given.copy()
    del given[:]
    noted = xf.jit(lambda x: xf.io_callback(twice, x, x))(x)
    assert gather(noted).tolist() == found["called in parts"][0]
    found["noted"] = given.copy()

    def fails(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("no more rows")

    def fails_in_last(x: torch.Tensor) -> torch.Tensor:
        return 2 * x if k < count - 1 else fails(x)

    found["failing effect"] = raised(lambda: xf.jit(lambda x: xf.io_callback(fails, x, x))(x))
    failing = xf.jit(lambda x: xf.pure_callback(fails_in_last, x, x).sum())
    found["failing call"] = raised(lambda: failing(x))
    found["after it"] = xf.device_get(xf.jit(with_calls)(x)).item()

    own = {"a": torch.tensor([k, 10 * k]), "b": torch.tensor([k + 0.5], dtype=torch.bfloat16)}
    found["stacked"] = [t.tolist() for t in xf.tree.leaves(gather(own))]
    found["tiled"] = [t.tolist() for t in xf.tree.leaves(gather(own, tiled=True))]
    found["unlike"] = raised(lambda: gather(torch.ones(k + 1)))
    wide = xf.device_put(torch.ones(4 + 4 * k), split)
    found["unlike on devices"] = raised(lambda: gather(wide))
    typed = xf.device_put(torch.ones(4, dtype=[torch.float32, torch.int32][k]), split)
    found["unlike dtypes"] = raised(lambda: gather(typed))
    found["here and there"] = raised(lambda: gather([torch.ones(4), typed][k]))
    finer = NamedSharding(mesh, P(("data", "tensor")))
    even = xf.device_put(torch.ones(8), [split, finer][k])
    found["unlike shardings"] = raised(lambda: gather(even))
    turned = xf.make_mesh((2, 2), ("data", "tensor"), devices=[[0, 1, 2, 3], [2, 3, 0, 1]][k])
    even = xf.device_put(torch.ones(8), NamedSharding(turned, P("data")))
    found["unlike orders"] = raised(lambda: gather(even))
    found["no tensor"] = raised(lambda: gather("abc" if k else 1.0))
    one_to_all = xf.distributed.broadcast_one_to_all
    found["first"] = one_to_all(torch.tensor([k == 0, True])).tolist()
    found["last"] = one_to_all(1j * k, is_source=k == count - 1).item().imag
    found["no source"] = raised(lambda: one_to_all(k, is_source=False))
    found["no tensor to send"] = raised(lambda: one_to_all("abc" if k else 1.0))
    found["no flag"] = raised(lambda: one_to_all(1.0, cast("bool", torch.ones(2)) if k else True))
    xf.distributed.sync_global_devices("here")
    found["places"] = raised(lambda: xf.distributed.sync_global_devices(f"at {k}"))
    found["wrong part"] = raised(
        lambda: xf.make_array_from_process_local_data(split, torch.ones(3, 8), (16, 8))
    )

    state = {"w": w, "x": x, "n": torch.tensor(3)}
    xf.sharding.save_checkpoint(folder / "step", state, {"at": [1, 2]})
    shape = xf.ShapeDtypeStruct((16, 8), torch.float32, NamedSharding(mesh, P("tensor", "data")))
    loaded = xf.sharding.load_checkpoint(folder / "step", {**state, "x": shape})
    found["loaded"] = gather(loaded["x"]).tolist()
    if (folder / "before").exists():
        before = xf.sharding.load_checkpoint(folder / "before", {"x": shape})
        found["before"] = gather(before["x"]).tolist()
    some_only(found, folder, state, k)
    xf.distributed.shutdown()
    return found


def some_only(found: dict[str, Any], folder: Path, state: dict[str, Any], k: int) -> None:
    """What one of the processes does otherwise, or cannot do."""
    save, load = xf.sharding.save_checkpoint, xf.sharding.load_checkpoint
    one = {key: x for key, x in state.items() if key != "n" or k}
    found["other tree"] = raised(lambda: save(folder / "other", one))
    later = xf.sharding.save_checkpoint_async
    found["other place"] = raised(lambda: later(folder / f"at {k}", state))
    found["unseen"] = raised(lambda: load(folder / ["step", "nowhere"][k], state))
    disk = folder / f"disk{k}"
    disk.mkdir()
    os.chdir(disk)  # Each has a folder of that name, on a disk of its own.
    found["own disks"] = raised(lambda: save("step", state))
    found["left on its disk"] = [path.name for path in disk.iterdir()]


def write() -> None:
    """Be one of the processes."""
    where, address, number, count = sys.argv[1:]
    found = main(Path(where), address, int(number), int(count))
    Path(where, f"{number}.json").write_text(json.dumps(found))
