import pytest

from xfunc.remat.policies import Offload

pytestmark = pytest.mark.quick


def test_offload_default_memories() -> None:
    assert Offload() == Offload("device", "pinned_host")
