"""One run of user code on placeholders, and the HLO that it yields."""
