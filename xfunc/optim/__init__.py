"""Optimizers as pure functions of trees of tensors, with optax's names.

An optimizer is a `GradientTransformation`: ``init(params) -> state`` and
``update(grads, state, params) -> (updates, state)``. `apply_updates` adds the updates to the
weights. Each state is a tree of tensors.
"""

from xfunc.optim.adafactor import FactoredState as FactoredState
from xfunc.optim.adafactor import adafactor as adafactor
from xfunc.optim.adafactor import clip_by_block_rms as clip_by_block_rms
from xfunc.optim.adafactor import scale_by_factored_rms as scale_by_factored_rms
from xfunc.optim.adafactor import scale_by_param_block_rms as scale_by_param_block_rms
from xfunc.optim.multi_steps import multi_steps as multi_steps
from xfunc.optim.muon import MuonState as MuonState
from xfunc.optim.muon import muon as muon
from xfunc.optim.muon import scale_by_muon as scale_by_muon
from xfunc.optim.optimizers import adam as adam
from xfunc.optim.optimizers import adamw as adamw
from xfunc.optim.optimizers import lion as lion
from xfunc.optim.optimizers import sgd as sgd
from xfunc.optim.scale import ScaleByAdamState as ScaleByAdamState
from xfunc.optim.scale import add_decayed_weights as add_decayed_weights
from xfunc.optim.scale import clip_by_global_norm as clip_by_global_norm
from xfunc.optim.scale import global_norm as global_norm
from xfunc.optim.scale import scale as scale
from xfunc.optim.scale import scale_by_adam as scale_by_adam
from xfunc.optim.scale import scale_by_learning_rate as scale_by_learning_rate
from xfunc.optim.scale import scale_by_lion as scale_by_lion
from xfunc.optim.scale import scale_by_schedule as scale_by_schedule
from xfunc.optim.scale import trace as trace
from xfunc.optim.schedules import constant_schedule as constant_schedule
from xfunc.optim.schedules import cosine_decay_schedule as cosine_decay_schedule
from xfunc.optim.schedules import join_schedules as join_schedules
from xfunc.optim.schedules import linear_schedule as linear_schedule
from xfunc.optim.schedules import warmup_cosine_decay_schedule as warmup_cosine_decay_schedule
from xfunc.optim.transformation import GradientTransformation as GradientTransformation
from xfunc.optim.transformation import apply_updates as apply_updates
from xfunc.optim.transformation import chain as chain
from xfunc.optim.transformation import masked as masked
