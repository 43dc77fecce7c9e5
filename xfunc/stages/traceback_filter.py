"""Tracebacks without the frames of libraries."""

from __future__ import annotations

import types

from xfunc import config
from xfunc.core.locations import in_user_code


def hide_library_frames(error: Exception) -> Exception:
    """The exception with the frames of xfunc and torch removed from its traceback."""
    if not config.hide_library_frames:
        return error
    entry = error.__traceback__
    kept: list[types.TracebackType] = []
    while entry is not None:
        if in_user_code(entry.tb_frame.f_code):
            kept.append(entry)
        entry = entry.tb_next
    trail: types.TracebackType | None = None
    for e in reversed(kept):
        trail = types.TracebackType(trail, e.tb_frame, e.tb_lasti, e.tb_lineno)
    return error.with_traceback(trail)
