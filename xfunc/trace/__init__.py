"""One run of user code on placeholders, and the resulting HLO."""
