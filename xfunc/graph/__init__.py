"""The graph of a program: see `xfunc.graph.node`."""
