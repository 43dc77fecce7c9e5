"""What `checkpoint` and `scan` may keep for the backward pass.

A policy is a function of an HLO instruction that says whether its value may be kept.
"""

from xfunc.split import everything_saveable as everything_saveable
from xfunc.split import nothing_saveable as nothing_saveable
