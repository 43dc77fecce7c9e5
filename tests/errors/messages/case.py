"""How an error is described."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Case:
    """One way to meet an error: what happens, the code, its message, the code mended."""

    what: str
    broken: str
    message: str
    mended: str = ""


@dataclasses.dataclass(frozen=True)
class Section:
    """The cases of one error class, or of what is raised as a builtin."""

    title: str
    intro: str
    cases: list[Case]
