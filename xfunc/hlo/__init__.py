"""HLO modules as data: read them, check them, cut them up, build them."""

from xfunc.hlo.builder import Builder as Builder
from xfunc.hlo.computation import ComputationBuilder as ComputationBuilder
from xfunc.hlo.computation import Function as Function
from xfunc.hlo.computation import Value as Value
from xfunc.hlo.errors import InvalidHloError as InvalidHloError
from xfunc.hlo.module import Computation as Computation
from xfunc.hlo.module import Instruction as Instruction
from xfunc.hlo.module import Module as Module
from xfunc.hlo.module import set_printer as set_printer
from xfunc.hlo.shape import Shape as Shape
from xfunc.hlo.verify import verify as verify
