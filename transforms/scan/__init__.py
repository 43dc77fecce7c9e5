"""`scan` and its gradient: read `scan`, `primitive`, `reverse_rule`, `loop`, then `loop_graph`."""
