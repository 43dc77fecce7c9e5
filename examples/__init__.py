"""Programs written with xfunc, to read and to run."""

import xfunc as xfunc  # before torch, which it imports without looking for garbage: 0.1 s less
