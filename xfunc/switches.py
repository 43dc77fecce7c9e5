"""What is switched for the length of a trace, in torch_xla and in Python."""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections.abc import Iterator

from xfunc import runtime


@contextlib.contextmanager
def tracing_switches() -> Iterator[None]:
    """torch_xla's process-wide switches, as tracing needs them."""
    X = runtime.xla()
    numbers = X._get_xla_all_numbers_special_scalars()
    allowed, eager = X._get_allow_execution(), X._get_use_eager_mode()
    X._set_xla_all_numbers_special_scalars(True)  # Python numbers: constants, not transfers.
    X._set_allow_execution(False)
    X._set_use_eager_mode(False)
    try:
        yield
    finally:
        X._set_xla_all_numbers_special_scalars(numbers)
        X._set_allow_execution(allowed)
        X._set_use_eager_mode(eager)


@contextlib.contextmanager
def young_garbage_only() -> Iterator[None]:
    """Let the garbage collector look only at objects made from now on.

    Half of all traces leave reference cycles behind. Collecting them takes 4 ms then; with all the
    objects of torch and its friends to look through it takes 260.
    """
    if gc.get_freeze_count():  # Someone else has frozen objects, and may not want them back.
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextlib.contextmanager
def derivatives_or_errors() -> Iterator[None]:
    """Let torch raise where it only warns: a backward pass that meets an operation without a rule.

    torch would go on with zeros. Its own error mode for this is not implemented in torch 2.9.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("error", NO_RULE, UserWarning)
        yield


NO_RULE = r"(\S+): an autograd kernel was not registered to the Autograd key"
"""What torch says of an operation that it cannot differentiate."""


def flush_user_work() -> None:
    """Let the user's own pending lazy tensors compute: NOTE [defusing what leaks]."""
    # It fails on a tensor that lost its computation to a refused read and is still held somewhere.
    with contextlib.suppress(RuntimeError):
        runtime.xla()._xla_sync_live_tensors(str(runtime.device()), [], False)
