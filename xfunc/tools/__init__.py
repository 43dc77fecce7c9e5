"""Looking into functions and programs: memory, NaNs, modules as functions."""
