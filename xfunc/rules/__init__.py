"""Rules: from aten operations to nodes. See `xfunc.tracer.table`."""
