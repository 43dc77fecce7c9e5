"""HLO modules as data: read them, check them, cut them up, build them."""

from .builder import Builder as Builder
from .computation import ComputationBuilder as ComputationBuilder
from .computation import Function as Function
from .computation import Value as Value
from .errors import InvalidHloError as InvalidHloError
from .module import Computation as Computation
from .module import Instruction as Instruction
from .module import Module as Module
from .module import set_printer as set_printer
from .passes import dead_code_elimination as dead_code_elimination
from .passes import extract as extract
from .shape import Shape as Shape
from .verify import verify as verify
