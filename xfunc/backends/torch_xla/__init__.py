"""The torch_xla backend: all uses of torch_xla."""
