"""JAX's runtime behind the seam; only this folder, and processes of their own, import JAX."""
