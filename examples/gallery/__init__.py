"""Small programs as a JAX user would write them, each in one file: see docs/gallery.md."""

import xfunc as xfunc  # before torch, which it imports without looking for garbage: 0.1 s less
