"""The errors that users meet: code that causes each, its full message, and the code fixed.

``python -m tests.errors.page > docs/errors.md`` writes the page of the documentation, and
``test_errors.py`` compares every message with what is raised. In a message, `...` stands for what
differs between machines, and ``example.py`` for the file with the code.
"""

# ruff: noqa: E501 (a line of a message is as long as it is)

from __future__ import annotations

import re

from tests.errors.messages.arguments import ARGUMENTS, GRADIENTS
from tests.errors.messages.compilation import COMPILATION, MEMORY, SIZES
from tests.errors.messages.others import OTHERS
from tests.errors.messages.purity import LEAKS, PURITY
from tests.errors.messages.reading import READING
from tests.errors.messages.shardings import DAMAGED, SHARDINGS, UNWRITTEN
from tests.errors.messages.trees import TREES
from tests.errors.messages.unsupported import UNSUPPORTED

PREFACE = """\
# Errors

Each message says what happened, to which value, in which function and on which line of your file, and ends with a hint. Frames of
xfunc and torch are hidden from the traceback (`xf.config.hide_library_frames = False` shows them). After an error, everything can be
called again. In the messages below, `...` stands for parts that differ between machines.

The classes are in `xf.errors`. Each derives from the builtin in brackets, so `except TypeError` works.

```python
import torch
import xfunc as xf
```
"""


def page() -> str:
    """The text of docs/errors.md."""
    parts = [PREFACE]
    for section in SECTIONS:
        parts.append(f"## {section.title}\n")
        if section.intro:
            parts.append(f"{section.intro}\n")
        for case in section.cases:
            error = case.message.partition(":")[0]
            message = re.sub(r"(?<=lambda at )example\.py:\d+", "errors.md:...", case.message)
            message = re.sub(r"\bexample\.py:\d+", "docs/errors.md:...", message)
            parts.append(f"{case.what}\n")
            parts.append(f"```python raises={error}\n{case.broken}```\n")
            parts.append(f"```text\n{message}\n```\n")
            if case.mended:
                parts.append(f"```python\n{case.mended}```\n")
    return "\n".join(parts)


SECTIONS = [
    READING,
    PURITY,
    LEAKS,
    TREES,
    UNSUPPORTED,
    SHARDINGS,
    SIZES,
    COMPILATION,
    MEMORY,
    DAMAGED,
    UNWRITTEN,
    GRADIENTS,
    ARGUMENTS,
    OTHERS,
]


if __name__ == "__main__":
    print(page(), end="")
