"""The families of models, one file for each or for close kin."""

from .family import NAMES as NAMES
from .family import Family as Family
from .family import Fused as Fused
from .family import Traits as Traits
from .registry import FAMILIES as FAMILIES
from .registry import register as register
