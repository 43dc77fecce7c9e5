"""Meshes and shardings; import it as ``xfunc.sharding``."""

if __name__ != "xfunc.sharding":  # A second copy would have meshes of its own.
    raise ImportError("import this package as xfunc.sharding, not as " + __name__)
