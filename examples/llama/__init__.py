"""Llama 3 with xfunc: a model, an optimizer, data, a train step, and a demo that runs them."""
