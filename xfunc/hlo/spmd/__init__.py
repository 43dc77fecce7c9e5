"""How values are sharded over devices, in HLO."""
