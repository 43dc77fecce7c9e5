"""Sizes that are not known yet: polynomials, HLO of all sizes, what it holds, its buckets."""
