"""Llama and its relatives as pure functions of a dictionary of tensors."""

from .llama import IGNORE as IGNORE
from .llama import Batch as Batch
from .llama import Routers as Routers
from .llama import attend as attend
from .llama import batch_of as batch_of
from .llama import forward as forward
from .llama import loss as loss
from .llama import losses_and_routed as losses_and_routed
from .llama import mean_loss as mean_loss
from .llama import mlp as mlp
from .llama import rms_norm as rms_norm
from .llama import target_count as target_count
from .parameters import Params as Params
from .parameters import decayed as decayed
from .parameters import init as init
from .parameters import shapes as shapes
from .parameters import weights as weights
from .rope import rotary as rotary
from .rope import rotate as rotate
from .sizes import CONFIGS as CONFIGS
from .sizes import PUBLISHED as PUBLISHED
from .sizes import TINY as TINY
from .sizes import Config as Config
from .sizes import Latent as Latent
from .sizes import RopeScaling as RopeScaling
