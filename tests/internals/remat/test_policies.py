from xfunc.remat.policies import Offload


def test_offload_default_memories() -> None:
    assert Offload() == Offload("device", "pinned_host")
