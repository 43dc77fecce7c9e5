"""The tracer of xfunc's own: see `xfunc.tracer.placeholders`."""
