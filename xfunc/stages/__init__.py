"""Calls: arguments, keys and entries; and a jitted function traced, lowered and compiled."""

from xfunc.stages.compiled import Compiled as Compiled
from xfunc.stages.stages import Lowered as Lowered
from xfunc.stages.stages import Traced as Traced
