"""The tracer of xfunc's own."""
