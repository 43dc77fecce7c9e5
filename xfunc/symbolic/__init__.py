"""Sizes that are not known yet: polynomials, HLO of all sizes, what it holds, its buckets."""

from xfunc.symbolic import exported as _exported  # noqa: F401 (it makes its format known)
