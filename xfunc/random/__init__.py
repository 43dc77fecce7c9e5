"""Random numbers from keys: the same bits as `jax.random`."""

from xfunc.random.continuous import gumbel as gumbel
from xfunc.random.continuous import normal as normal
from xfunc.random.continuous import truncated_normal as truncated_normal
from xfunc.random.continuous import uniform as uniform
from xfunc.random.discrete import bernoulli as bernoulli
from xfunc.random.discrete import categorical as categorical
from xfunc.random.discrete import permutation as permutation
from xfunc.random.discrete import randint as randint
from xfunc.random.implicit import implicit as implicit
from xfunc.random.threefry import bits as bits
from xfunc.random.threefry import fold_in as fold_in
from xfunc.random.threefry import key as key
from xfunc.random.threefry import split as split
