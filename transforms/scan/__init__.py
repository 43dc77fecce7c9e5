"""`scan` and its gradient. Read `scan`, `primitive`, `pair`, `loop`, `counted`, in this order."""
