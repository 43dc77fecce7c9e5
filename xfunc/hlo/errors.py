"""The error of this package."""

from __future__ import annotations


class InvalidHloError(ValueError):
    """An HLO module breaks a rule of HLO; the message names the instruction and computation."""
