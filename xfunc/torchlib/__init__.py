"""torch's own functions, transforms and private parts, as tracing needs them."""
