"""The errors that messages of XLA become, at compilation and in a running program."""

import pytest

from xfunc import errors
from xfunc.backends.errors import compile_error, run_error

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("message", "required", "limit"),
    [
        (
            "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory "
            "space hbm. Used 23.43G of 15.48G hbm. Exceeded hbm capacity by 7.95G.\n\n"
            "Total hbm usage >= 23.95G:\n    reserved        530.00M",
            int(23.43 * 2**30),
            int(15.48 * 2**30),
        ),
        (
            "RESOURCE_EXHAUSTED: Error allocating device buffer: Attempting to allocate 3.50G. "
            "That was not possible. There are 512.0M free.; (0x0x0_HBM0)",
            7 * 2**29,
            2**29,
        ),
        ("RESOURCE_EXHAUSTED: Out of memory allocating 4398046511104 bytes.", 2**42, None),
        ("Out of memory allocating 1024 bytes.", 1024, None),
        ("RESOURCE_EXHAUSTED: no details", None, None),
        ("std::bad_alloc", None, None),
    ],
)
def test_compile_error_out_of_memory_parses_bytes(
    message: str, required: int | None, limit: int | None
) -> None:
    error = compile_error("train_step", message)
    assert isinstance(error, errors.OutOfMemoryError)
    assert (error.required_bytes, error.limit_bytes) == (required, limit)
    problem, where, hint = str(error).rsplit("\n", 2)
    assert problem == f"train_step does not fit in memory: {message}"
    assert where.startswith(f"  at {__file__}:")
    assert hint.startswith("Hint: use a smaller batch")


def test_compile_error_of_other_message() -> None:
    error = compile_error("train_step", "UNIMPLEMENTED: some operation")
    assert type(error) is errors.CompileError
    assert str(error).startswith(
        "XLA could not compile train_step: UNIMPLEMENTED: some operation\n"
    )


@pytest.mark.parametrize(
    ("message", "hint"),
    [
        ("UNKNOWN: Gloo all-reduce failed: Connection closed by peer", "another process has ended"),
        ("NCCL operation failed: unhandled system error", "another process has ended"),
        ("INTERNAL: CUDA_ERROR_ILLEGAL_ADDRESS", "mend what the message names"),
    ],
)
def test_run_error_hint_by_message(message: str, hint: str) -> None:
    error = run_error("train_step", message)
    assert type(error) is errors.ExecutionError
    problem, where, said = str(error).rsplit("\n", 2)
    assert problem == f"train_step failed while it ran: {message}"
    assert where.startswith(f"  at {__file__}:")
    assert said.startswith(f"Hint: {hint}")


def test_run_error_out_of_memory() -> None:
    error = run_error("train_step", "INTERNAL: Out of memory allocating 1024 bytes.")
    assert isinstance(error, errors.OutOfMemoryError)
    assert error.required_bytes == 1024
