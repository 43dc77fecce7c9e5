"""Shared basics: abstract values, source locations in user code, the context of a call."""
