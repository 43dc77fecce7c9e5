"""The flags that XLA reads when it starts, in torch_xla's library and in JAX's."""

from __future__ import annotations

import os

# NOTE [virtual devices] With several devices xfunc runs torch_xla in its SPMD mode: one program for
# all of them, with unsharded data replicated. On the CPU the devices are threads of one pool, and
# one that waits in a collective for the others blocks its thread. If a program finds too few
# threads for all of its devices, it waits forever, and XLA aborts the process. So the pool has
# several for each device (`NPROC`, which XLA reads when it starts), and a program is only launched
# once the previous one has ended (`_run_alone` in `xfunc.backends.torch_xla.executable`).
THREADS_PER_DEVICE = 4

compiled_programs: str | None = None
"""The folder in which `xfunc.config.set_compilation_cache_dir` keeps compiled programs."""


def set_flags() -> None:
    """Set the flags that XLA reads when it starts."""
    flags = os.environ.get("XLA_FLAGS", "")
    if "--xla_cpu_enable_fast_min_max" not in flags:
        # By default XLA's CPU target drops NaN from maxima and minima, which torch does not.
        os.environ["XLA_FLAGS"] = f"{flags} --xla_cpu_enable_fast_min_max=false".strip()
