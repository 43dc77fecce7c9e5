"""Rules: from aten operations to nodes. See `xfunc.rules.table`."""
