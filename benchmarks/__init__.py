"""Host-side costs of xfunc compared with those of its peers."""

import xfunc as xfunc  # before torch, which it imports without looking for garbage: 0.1 s less
