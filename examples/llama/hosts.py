"""The processes of a pod, one on each host, which all run the same program."""

import torch
from torch import distributed

import xfunc as xf


def join() -> None:
    """Let the processes find each other, if there are several: checkpoints need it."""
    if xf.process_count() > 1 and not distributed.is_initialized():
        import torch_xla.distributed.xla_backend  # It knows where xla:// is.  # noqa: F401

        distributed.init_process_group("gloo", init_method="xla://")


def is_first() -> bool:
    """Whether this process is the one that prints and writes."""
    return not distributed.is_initialized() or distributed.get_rank() == 0


def agree(wanted: bool) -> bool:
    """Whether any process wants it."""
    if not distributed.is_initialized():
        return wanted
    votes = torch.tensor(int(wanted))
    distributed.all_reduce(votes, distributed.ReduceOp.MAX)
    return bool(votes)
