"""Rematerialisation: values kept for the backward pass, and values recomputed."""
