"""How a model is computed. Nothing here changes the result."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from xfunc import checkpoint_policies

from .. import checks
from ..parallel.sharding import Sharding

# The values that the backward pass of a layer does not recompute. The input of each layer is always
# kept, here or on the host; the model names it `layer_input`, and the residuals of attention
# `attention`.
POLICIES: dict[str, Callable[..., Any]] = {
    "full": checkpoint_policies.nothing_saveable,
    "attention": checkpoint_policies.save_only_these_names("attention"),
    "dots": checkpoint_policies.dots_with_no_batch_dims_saveable,
    "dots-attention": checkpoint_policies.save_from_both_policies(
        checkpoint_policies.dots_with_no_batch_dims_saveable,
        checkpoint_policies.save_only_these_names("attention"),
    ),
    "everything": checkpoint_policies.everything_saveable,
    "offload": checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=(), names_which_can_be_offloaded=("layer_input",)
    ),
    "offload-attention": checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=(), names_which_can_be_offloaded=("layer_input", "attention")
    ),
}
KERNELS = {"splash": "tpu", "cudnn": "gpu"}  # the kinds of attention that one kind of device has
TILE = 256  # rows in a block of JAX's kernel for experts, as in libtpu's own grouped products
ATTENTION = ("dense", "blockwise", *KERNELS)


@dataclass(frozen=True)
class Plan:
    """Choices that trade memory for time.

    Attributes:
        policy: what a layer saves for its backward pass.
        attention: how attention is computed. `dense` computes all scores of a layer at once,
            `blockwise` those of one block at a time; `splash` is JAX's kernel for TPUs, `cudnn`
            NVIDIA's for its GPUs.
        block: queries, and keys, per block of attention.
        loss_chunk: positions of a row whose logits are computed at a time. For a longer row, the
            backward pass computes them again.
        microbatches: parts of a batch, whose gradients are computed in turn and added.
        sharding: the shardings of weights and activations; None: all on one device.
        on_tpu: whether it runs on TPUs, where JAX's kernel multiplies with experts.
    """

    CHOICES: ClassVar[Mapping[str, Iterable[str]]] = {"policy": POLICIES, "attention": ATTENTION}
    DERIVED: ClassVar = ("sharding", "on_tpu")  # not settings of a run

    policy: str = "full"
    attention: str = "blockwise"
    block: int = 512
    loss_chunk: int = 1024
    microbatches: int = 1
    sharding: Sharding | None = None
    on_tpu: bool = False

    @property
    def context(self) -> int:
        """How many devices share a row."""
        return 1 if self.sharding is None else self.sharding.mesh.shape["context"]

    def expert_block(self, rows: int, experts: int) -> tuple[int, bool]:
        """How many of the `rows` that experts share are multiplied with one of them at a time, and
        whether the kernel does that: with few rows most of its blocks would be padding.
        """
        block = min(self.block, -(-rows // experts))
        return (TILE, True) if self.on_tpu and block >= TILE else (block, False)

    def as_divided(self, x: Tensor, *, inverse: bool = False) -> Tensor:
        """``[batch, seq, ...]`` in the order in which devices have the tokens of a row."""
        if self.context == 1 or self.sharding is None:
            return x
        chunks = self.sharding.chunks(x.shape[1])
        if inverse:
            chunks = sorted(range(len(chunks)), key=chunks.__getitem__)
        cut = x.unflatten(1, (len(chunks), -1))
        return cut[:, torch.tensor(chunks, device=x.device)].flatten(1, 2)

    def in_order(self, x: Tensor) -> Tensor:
        """The inverse of `as_divided`."""
        return self.as_divided(x, inverse=True)

    def __post_init__(self) -> None:
        checks.choices(self)
        checks.at_least(self, 1, "block", "loss_chunk", "microbatches")
