"""torch's own functions, transforms and private APIs, as tracing needs them."""
