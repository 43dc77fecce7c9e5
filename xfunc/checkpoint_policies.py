"""Policies for what `checkpoint` and `scan` keep for the backward pass.

A policy is a function of an HLO instruction that says whether its value may be kept; see
`xfunc.remat.policies`.
"""

from xfunc.remat.min_cut import min_cut as min_cut
from xfunc.remat.policies import checkpoint_dots as checkpoint_dots
from xfunc.remat.policies import (
    checkpoint_dots_with_no_batch_dims as checkpoint_dots_with_no_batch_dims,
)
from xfunc.remat.policies import dots_saveable as dots_saveable
from xfunc.remat.policies import (
    dots_with_no_batch_dims_saveable as dots_with_no_batch_dims_saveable,
)
from xfunc.remat.policies import everything_saveable as everything_saveable
from xfunc.remat.policies import nothing_saveable as nothing_saveable
from xfunc.remat.policy_factories import (
    offload_dot_with_no_batch_dims as offload_dot_with_no_batch_dims,
)
from xfunc.remat.policy_factories import (
    save_and_offload_only_these_names as save_and_offload_only_these_names,
)
from xfunc.remat.policy_factories import save_any_names_but_these as save_any_names_but_these
from xfunc.remat.policy_factories import (
    save_anything_except_these_names as save_anything_except_these_names,
)
from xfunc.remat.policy_factories import save_from_both_policies as save_from_both_policies
from xfunc.remat.policy_factories import save_only_these_names as save_only_these_names
