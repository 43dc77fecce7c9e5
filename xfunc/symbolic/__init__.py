"""Symbolic sizes: polynomials, HLO valid for all sizes, its memory, its buckets."""

from xfunc.symbolic import exported as _exported  # noqa: F401 (it makes its format known)
