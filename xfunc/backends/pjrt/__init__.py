"""JAX's runtime behind the seam; only this folder and separate processes import JAX."""
