"""The fixtures of `tests/llama`, for tests of the example's internals."""

from tests.llama.conftest import (  # noqa: F401
    at_step,
    command,
    made,
    run_of,
    settings,
    text,
    trained,
)
