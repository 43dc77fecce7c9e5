"""What is traced before the first run, which chooses the backend, is found afterwards."""

import pytest

from tests.support.fresh import Server

pytestmark = pytest.mark.quick

SCRIPT = """
import torch, xfunc as xf

double = xf.jit(lambda x: x * 2)
shape = xf.ShapeDtypeStruct((3,), torch.float32)
xf.eval_shape(double, shape)
double.lower(shape).as_text()
double.lower(shape).compile()
assert double(torch.ones(3)).tolist() == [2, 2, 2]
assert ", 1 traces," in double.explain(), double.explain()
"""

OF_BUCKETS = """
import torch, xfunc as xf

S = xf.Dim("S", max=16)
double = xf.jit(lambda x: x * 2, dynamic_shapes=((S,),), buckets=[4, 8, 16])
assert "f32[S]" in double.lower(xf.ShapeDtypeStruct((S,), torch.float32)).as_text()
"""


@pytest.mark.parametrize("script", [SCRIPT, OF_BUCKETS], ids=["trace", "buckets"])
def test_lower_before_the_first_run(fresh: Server, script: str) -> None:
    done = fresh.run(script)
    assert done.returncode == 0, done.stderr
