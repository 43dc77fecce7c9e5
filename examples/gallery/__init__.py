"""Small programs as a JAX user would write them, each in one file: see docs/gallery.md."""
