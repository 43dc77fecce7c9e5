"""HLO modules as data: write them, read them, check them."""

from xfunc.hlo.errors import InvalidHloError as InvalidHloError
from xfunc.hlo.module import Computation as Computation
from xfunc.hlo.module import Instruction as Instruction
from xfunc.hlo.module import Module as Module
from xfunc.hlo.module import set_printer as set_printer
from xfunc.hlo.shape import Shape as Shape
from xfunc.hlo.verify import verify as verify
