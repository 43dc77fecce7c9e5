"""xfunc imports torch_xla without some parts of it, and loads these on demand."""

from __future__ import annotations

import pytest

from tests.support.fresh import Server

pytestmark = pytest.mark.torch_xla

CALL = """
import sys, torch, xfunc as xf
assert xf.jit(torch.sin)(torch.zeros(2)).tolist() == [0.0, 0.0]
"""
COMPILERS = "print(*[n for n in ('torch._dynamo', 'torch._inductor') if n in sys.modules])"
SETTINGS = """
config = torch._dynamo.config
print(config.automatic_dynamic_shapes, config.specialize_float)
"""


def printed(fresh: Server, code: str) -> list[str]:
    done = fresh.run(code)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_jit_first_call_imports_no_torch_compilers(fresh: Server) -> None:
    assert printed(fresh, CALL + COMPILERS) == []


@pytest.mark.slow
def test_torch_xla_import_loads_torch_compilers(fresh: Server) -> None:
    """If it no longer does, nothing need be left out."""
    found = printed(fresh, "import sys, torch_xla\n" + COMPILERS)
    assert found == ["torch._dynamo", "torch._inductor"]


@pytest.mark.slow
@pytest.mark.parametrize("before", ["import torch", "import torch._dynamo"])
def test_torch_compile_settings_are_kept(fresh: Server, before: str) -> None:
    untouched = printed(fresh, "import torch._dynamo\n" + SETTINGS)
    assert printed(fresh, "import torch_xla, torch\n" + SETTINGS) != untouched
    assert printed(fresh, f"{before}\n{CALL}{SETTINGS}") == untouched


@pytest.mark.slow
def test_torch_xla_left_out_parts_load_on_demand(fresh: Server) -> None:
    code = (
        CALL
        + """
import torch_xla
exported = torch.export.export(torch.nn.Linear(2, 3), (torch.ones(1, 2),))
text = torch_xla.stablehlo.exported_program_to_stablehlo(exported).get_stablehlo_text()
assert "stablehlo.dot_general" in text
assert torch_xla.save_as_stablehlo is torch_xla.stablehlo.save_as_stablehlo
assert torch_xla._patched_functions.clip_grad_norm_ is not torch.nn.utils.clip_grad_norm_
assert not hasattr(torch_xla, "no_such_name")

from torch_xla.experimental.scan import scan
x = torch.ones(2, device="xla")
print(*scan(lambda c, x: (c + x, c), x, torch.ones(3, 2, device="xla"))[0].tolist())
print(*torch.compile(lambda x: x * 2 + 1, backend="openxla")(x).tolist())
print(*torch.compile(lambda x: x * 2 + 1, backend="aot_eager")(torch.ones(2)).tolist())
"""
    )
    assert printed(fresh, code) == ["4.0"] * 2 + ["3.0"] * 4


@pytest.mark.slow
def test_torch_xla_imported_first_is_complete(fresh: Server) -> None:
    code = (
        "import torch_xla\n"
        + CALL
        + """
print(torch.nn.GRU is torch_xla.experimental.gru.GRU, "__getattr__" in vars(torch_xla))
"""
    )
    assert printed(fresh, code) == ["True", "False"]
