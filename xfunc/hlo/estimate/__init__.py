"""What a program costs and holds, estimated from its HLO."""
