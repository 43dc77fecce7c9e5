import dis
import inspect
import types
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional

from xfunc.cache import names

pytestmark = pytest.mark.quick


def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from codes(const)


@pytest.mark.parametrize("module", [dis, inspect, torch.nn.functional, torch])
def test_names_are_those_that_dis_finds(module: types.ModuleType) -> None:
    """The package reads bytecode itself: in each version of Python, `dis` must read the same."""
    found: list[tuple[int, str]] = []
    wanted: list[tuple[int, str]] = []
    for code in codes(compile(inspect.getsource(module), module.__name__, "exec")):
        found += names._named(code)
        every = dis.get_instructions(code)
        wanted += [(i.opcode, i.argval) for i in every if i.opcode in dis.hasname]
    assert len(wanted) > 500
    assert found == wanted
