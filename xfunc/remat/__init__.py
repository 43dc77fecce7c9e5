"""What is kept for the backward pass, and what is recomputed."""
