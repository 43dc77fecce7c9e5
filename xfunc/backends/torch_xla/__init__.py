"""Everything that touches torch_xla."""
