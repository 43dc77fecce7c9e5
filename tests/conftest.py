"""Settings that must stand before torch_xla starts its client, and the `device` fixture."""

import os

import pytest

os.environ.setdefault("PJRT_DEVICE", "CPU")

# Compiling is about three times faster so. Right for tests, never for timings.
flags = os.environ.get("XLA_FLAGS", "")
if "--xla_backend_optimization_level" not in flags:
    os.environ["XLA_FLAGS"] = f"{flags} --xla_backend_optimization_level=0".strip()


@pytest.fixture(scope="session")
def device():
    """The device on which transformed functions run, with the kernels that xfunc gives it."""
    from xfunc.backends.torch_xla import runtime

    return runtime.device()
