"""The second runtime: the same programs, run by JAX."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import xfunc as xf
from tests.support.fresh import Server
from tests.support.processes import free_port
from xfunc.errors import CompileError

pytestmark = pytest.mark.usefixtures("pjrt")


def array_type() -> type[torch.Tensor]:
    """The class of what JAX's runtime returns."""
    found = type(xf.device_put(torch.zeros(())))
    assert found.__name__ == "Array"
    return found


def close(got: Any, want: Any) -> None:
    Array = array_type()
    got, want = xf.tree.leaves(got), xf.tree.leaves(want)
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        assert type(g) is Array
        torch.testing.assert_close(g.cpu(), w)


DTYPES = [
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.complex128,
    torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_jit_every_dtype(dtype: torch.dtype) -> None:
    x = torch.tensor([[0, 1, 1], [1, 0, 1]]).to(dtype)
    x = x * (1 + 2j) if dtype.is_complex else x
    close(xf.jit(lambda x: (x.T, x == x, torch.where(x == 0, x, x)))(x), (x.T, x == x, x))
    close(xf.jit(lambda x: x[:, :0])(x), x[:, :0])


def mlp(p: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    return F.softmax(torch.tanh(x @ p["w"]) @ p["v"], -1).square().sum()


def weights() -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    shapes = {"w": (3, 5), "v": (5, 2)}
    p = {k: torch.randn(s, generator=g, dtype=torch.float64) for k, s in shapes.items()}
    return p, torch.randn(4, 3, generator=g, dtype=torch.float64)


TRANSFORMED = {
    "jit": (lambda p, x: xf.jit(mlp)(p, x), lambda p, x: mlp(p, x)),
    "value_and_grad": (
        xf.value_and_grad(mlp),
        lambda p, x: (mlp(p, x), torch.func.grad(mlp)(p, x)),
    ),
    "vmap of grad": (
        lambda p, x: xf.vmap(xf.grad(mlp), (None, 0))(p, x),
        lambda p, x: torch.func.vmap(torch.func.grad(mlp), (None, 0))(p, x),
    ),
    "jvp": (
        lambda p, x: xf.jvp(lambda x: mlp(p, x), (x,), (x,)),
        lambda p, x: torch.func.jvp(lambda x: mlp(p, x), (x,), (x,)),
    ),
    "hessian": (
        lambda p, x: xf.hessian(lambda x: mlp(p, x))(x[0]),
        lambda p, x: torch.func.hessian(lambda x: mlp(p, x))(x[0]),
    ),
    "grad of scan": (
        xf.grad(lambda p, x: xf.scan(lambda c, r: (c + mlp(p, r[None]), c), x[0, 0], x)[0]),
        torch.func.grad(lambda p, x: x[0, 0] + sum(mlp(p, r[None]) for r in x)),
    ),
    "while and cond": (
        lambda p, x: xf.while_loop(
            lambda c: c[0] < 4,
            lambda c: (c[0] + 1, xf.cond(c[0] % 2 == 0, lambda v: v * 2, lambda v: v - 1, c[1])),
            (torch.tensor(0), x),
        )[1],
        lambda p, x: (x * 2 - 1) * 2 - 1,
    ),
    "linalg": (
        lambda p, x: xf.jit(lambda a: (torch.linalg.inv(a), torch.linalg.eigvalsh(a @ a.T)))(x[:3]),
        lambda p, x: (torch.linalg.inv(x[:3]), torch.linalg.eigvalsh(x[:3] @ x[:3].T)),
    ),
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_transforms_match_torch(name: str) -> None:
    ours, torchs = TRANSFORMED[name]
    close(ours(*weights()), torchs(*weights()))


@pytest.mark.torch_xla
def test_random_draws_equal_on_both_backends() -> None:
    draw = xf.jit(lambda k: (xf.random.normal(k, (5,)), xf.random.randint(k, (5,), 0, 99)))
    here = [x.cpu() for x in draw(xf.random.key(3))]
    xf.config.set_backend("torch_xla")
    for a, b in zip(here, draw(xf.random.key(3)), strict=True):
        assert torch.equal(a, b.cpu())


@pytest.mark.torch_xla
def test_set_backend_own_programs_and_shared_data() -> None:
    f = xf.jit(lambda x: x * 2)
    x, Array = f(torch.ones(3)), array_type()
    assert type(x) is Array
    xf.config.set_backend("torch_xla")
    y = f(x)
    assert y.device.type == "xla"
    assert y.tolist() == [4, 4, 4]
    xf.config.set_backend("pjrt")
    assert type(f(y)) is Array
    assert f(y).tolist() == [8, 8, 8]
    assert xf.trace_count(f) == 2


def test_autograd_backward_through_jit() -> None:
    p, x = weights()
    w = p["w"].clone().requires_grad_()
    loss = xf.jit(mlp)({**p, "w": w}, x)
    (loss * 3).backward()
    torch.testing.assert_close(w.grad.cpu(), 3 * torch.func.grad(mlp)(p, x)["w"])  # type: ignore[union-attr]
    leaf = xf.jit(lambda x: x + 1)(x).requires_grad_()
    (xf.jit(lambda x: x**3)(leaf).sum() + (leaf * 2).sum()).backward()
    torch.testing.assert_close(leaf.grad.cpu(), 3 * (x + 1) ** 2 + 2)  # type: ignore[union-attr]


def made() -> torch.Tensor:
    return xf.jit(lambda x: x + 1)(torch.arange(6.0).reshape(2, 3))


WRITES = {
    "add_": lambda x: x.add_(1),
    "a view": lambda x: x[0].zero_(),
    "a view of a view": lambda x: x.T[1:].mul_(2),
    "indexing": lambda x: x.__setitem__((slice(None), 1), 7.0),
    "copy_": lambda x: x.copy_(torch.full((2, 3), 5.0)),
    "out": lambda x: torch.add(x.clone(), 3, out=x),
    "detach": lambda x: x.detach().add_(1),
    "data": lambda x: x.data.add_(1),
    "assigned data": lambda x: setattr(x, "data", torch.zeros(2, 3)),
    "numpy": lambda x: np.add(x.numpy(), 1, out=x.numpy()),
    "from_dlpack": lambda x: torch.from_dlpack(x).add_(1),
    "foreach": lambda x: torch._foreach_add_([x], 2.0),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_jit_sees_in_place_writes(write: Any) -> None:
    want = torch.arange(1.0, 7.0).reshape(2, 3)
    x = made()
    write(want)
    write(x)
    torch.testing.assert_close(x.cpu(), want)
    close(xf.jit(lambda x: x * 2)(x), want * 2)
    write(want)
    write(x)  # also after a program has seen it
    close(xf.jit(lambda x: x * 2)(x), want * 2)


def test_jit_output_unchanged_by_writes_to_input() -> None:
    x = torch.ones(64)
    kept = xf.jit(lambda x: (x, x + 1))
    same, more = kept(x)
    x.zero_()
    assert same.tolist() == [1.0] * 64
    assert more.tolist() == [2.0] * 64
    y = same.clone()
    same.zero_()
    assert y.tolist() == [1.0] * 64


def test_result_is_cpu_tensor() -> None:
    x = made()
    assert isinstance(x, torch.Tensor)
    assert x.device == torch.device("cpu")
    assert not getattr(x, "is_xla", False)
    assert x.shape == (2, 3)
    assert x.stride() == (3, 1)
    assert x.dtype is torch.float32
    assert repr(x) == repr(torch.arange(1.0, 7.0).reshape(2, 3))
    assert x.sum().item() == 21
    assert float(x[0, 1]) == 2
    assert x.tolist()[1] == [4, 5, 6]
    assert np.asarray(x).tolist() == x.tolist()
    assert type(x + 1) is torch.Tensor
    assert type(x.cpu()) is torch.Tensor
    for other in (copy.deepcopy(x), pickle.loads(pickle.dumps(x)), xf.device_get(x)):
        assert type(other) is torch.Tensor
        assert torch.equal(other, x.cpu())
    layer = torch.nn.Linear(3, 2)
    assert layer(x).shape == (2, 2)
    with pytest.raises(RuntimeError, match="requires grad"):
        made().requires_grad_().numpy()


def test_donated_arguments_are_deleted_and_reused() -> None:
    step = xf.jit(lambda s, x: (s + x.sum(), x), donate_argnums=0)
    s = made()
    new, _ = step(s, torch.ones(4))
    assert new.tolist()[0] == [5, 6, 7]
    with pytest.raises(RuntimeError, match=r"donated(.|\n)*Hint"):
        _ = s + 1
    found = step.lower(new, torch.ones(4)).compile().memory_analysis()
    assert found.alias_size_in_bytes == 24


@pytest.mark.one_device
def test_callbacks_results_and_errors() -> None:
    seen = []

    def note(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.tolist())
        return x.sin()

    def f(x: torch.Tensor) -> torch.Tensor:
        xf.debug.print("x is {x}", x=x)
        return xf.pure_callback(note, xf.ShapeDtypeStruct(x.shape, x.dtype), x) * 2

    close(xf.jit(f)(torch.ones(2)), torch.ones(2).sin() * 2)
    assert seen == [[1.0, 1.0]]

    def fails(x: torch.Tensor) -> torch.Tensor:
        raise KeyError("no such row")

    with pytest.raises(KeyError, match="no such row"):
        xf.jit(lambda x: xf.pure_callback(fails, xf.ShapeDtypeStruct((2,), x.dtype), x))(
            torch.ones(2)
        )
    close(xf.jit(f)(torch.ones(2)), torch.ones(2).sin() * 2)
    xf.block_until_ready(())  # not for what has failed


def test_callback_as_only_result() -> None:
    """XLA of jaxlib 0.7.1 ended the process: the product is in the computation of such a root."""
    x = torch.randn(2, 4, 2)
    system = x @ x.mT + torch.eye(4)
    got = xf.jit(lambda x, eye: torch.linalg.solve_triangular(x @ x.mT + eye, x, upper=False))
    want = torch.linalg.solve_triangular(system, x, upper=False)
    close(got(x, torch.eye(4).expand(2, 4, 4)), want)
    got = xf.jit(
        lambda x: xf.pure_callback(
            torch.sin, xf.ShapeDtypeStruct((2, 4, 4), torch.float32), x @ x.mT
        )
    )
    close(got(x), (x @ x.mT).sin())


@pytest.mark.one_device
def test_compiled_analyses_and_devices() -> None:
    compiled = xf.jit(lambda x: (x @ x).sum()).lower(torch.ones(4, 4)).compile()
    assert compiled.memory_analysis().argument_size_in_bytes == 64
    assert "f32[4,4]" in (compiled.as_text() or "")
    assert "call_exported" not in (compiled.as_text() or "")
    assert compiled(torch.ones(4, 4)).item() == 64
    assert xf.default_backend() == "cpu"
    assert xf.devices() == [0]
    assert xf.process_count() == 1
    assert xf.block_until_ready(made()).tolist()[0] == [1, 2, 3]


def test_errors_of_backend_name_and_memory() -> None:
    with pytest.raises(
        ValueError, match=r"no backend 'cuda'(.|\n)*Hint: choose one of 'torch_xla'"
    ):
        xf.config.set_backend("cuda")
    f = xf.jit(lambda x: torch.zeros(2**45) + x)
    with pytest.raises(CompileError, match="bytes"):
        f(torch.ones(()))
    close(xf.jit(lambda x: x + 1)(torch.ones(2)), torch.full((2,), 2.0))


LATE = """if True:
    import torch, xfunc as xf

    start()
    for set, value in ((xf.config.set_cpu_devices, 8), (xf.config.set_platform, "cpu")):
        try:
            set(value)
        except RuntimeError as error:
            print(error)
    assert xf.devices() == [0]
"""


@pytest.mark.parametrize("start", ["xf.device_put(torch.ones(2))", "xf.devices()"])
def test_config_devices_after_client_start_raise(fresh: Server, start: str) -> None:
    env = {"XFUNC_BACKEND": "pjrt", "CPU_NUM_DEVICES": ""}
    done = fresh.run(LATE.replace("start()", start), env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("came after the device client had started\n") == 2


@pytest.mark.parametrize("platform", ["", "xf.config.set_platform('cpu')"])
def test_set_backend_starts_no_devices(fresh: Server, platform: str) -> None:
    """What is set about them may come before or after."""
    program = f"""
import torch, xfunc as xf
xf.config.set_backend("pjrt")
{platform}
xf.config.set_cpu_devices(4)
xf.distributed.initialize("localhost:{free_port()}", 1, 0)
mesh = xf.sharding.make_mesh((4,), ("x",))
x = xf.device_put(torch.arange(8.0), xf.sharding.NamedSharding(mesh, xf.sharding.P("x")))
print(xf.devices(), xf.jit(torch.sum)(x).item(), xf.distributed.is_initialized())
"""
    done = fresh.run(program, env={"XFUNC_BACKEND": "", "CPU_NUM_DEVICES": "", "NPROC": ""})
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("[0, 1, 2, 3] 28.0 True\n")


QUIET = """if True:
    import os, torch, xfunc as xf

    xf.config.set_backend("pjrt")
    mesh = xf.make_mesh((2,), ("x",))
    x = xf.device_put(torch.ones(4, 4), xf.NamedSharding(mesh, xf.P("x")))
    assert xf.jit(lambda x: (x @ x).sum())(x).item() == 64
    print(os.environ["TF_CPP_MIN_LOG_LEVEL"])
"""


def test_sharded_programs_print_no_warning(fresh: Server) -> None:
    env = {"CPU_NUM_DEVICES": "2", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = fresh.run(QUIET, env=env)
    assert (done.stdout, done.stderr) == ("3\n", "")  # as it was set
    done = fresh.run("import os; del os.environ['TF_CPP_MIN_LOG_LEVEL']\n" + QUIET, env=env)
    assert (done.stdout, done.stderr) == ("2\n", "")


def test_set_backend_without_torch_xla_raises(fresh: Server) -> None:
    code = "import sys; sys.modules['torch_xla'] = None; import xfunc as xf; "
    done = fresh.run(code + "xf.config.set_backend('torch_xla')")
    assert "ImportError: the backend 'torch_xla' needs torch_xla, which is not" in done.stderr
    assert "use the backend 'pjrt'" in done.stderr


def test_out_of_memory_at_execution() -> None:
    """The program has only been launched when the call returns: who reads is told."""

    def product(n: torch.Tensor) -> torch.Tensor:
        table = torch.arange(2.0**23)[:, None] * torch.arange(2.0**23) + n
        return (table @ table)[3, 3]

    found = xf.jit(product)(torch.ones(()))
    with pytest.raises(xf.errors.OutOfMemoryError, match="program that was to compute this value"):
        found.item()


def test_sort_larger_than_memory() -> None:
    def sort(n: torch.Tensor) -> torch.Tensor:
        table = torch.arange(2.0**20)[:, None] * torch.arange(2.0**20) + n
        return torch.sort(table, 1)[0][3, 3]

    with pytest.raises(
        xf.errors.OutOfMemoryError, match=r"a sort in .*sort takes 13194139533312 b"
    ):
        xf.jit(sort)(torch.ones(()))
