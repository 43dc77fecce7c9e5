"""Training from settings to checkpoints: `fit` is the program, `steps` what it compiles."""

from .steps import Batch as Batch
from .steps import State as State
from .steps import abstract_base as abstract_base
from .steps import abstract_batch as abstract_batch
from .steps import abstract_state as abstract_state
from .steps import dynamic_step as dynamic_step
from .steps import eval_loss as eval_loss
from .steps import gradient as gradient
from .steps import init as init
from .steps import shardings as shardings
from .steps import start as start
from .steps import train_step as train_step
from .train_config import OPTIMIZERS as OPTIMIZERS
from .train_config import Recipe as Recipe
