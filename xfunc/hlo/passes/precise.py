"""Products of float32 computed in float32, on chips that would compute them in a shorter format.

On NVIDIA GPUs XLA rounds the factors of a product to TF32, which has 11 significant bits, unless
the product asks for the highest precision. torch does not: `torch.set_float32_matmul_precision`.
"""

from __future__ import annotations

from xfunc.hlo import hlo_pb2 as pb

_HIGHEST = pb.PrecisionConfig.HIGHEST
_SINGLE = (pb.F32, pb.C64)


def ask_for_float32(proto: pb.HloModuleProto) -> None:
    """Let products and convolutions of float32 have the highest precision, in place."""
    for computation in proto.computations:
        shapes = {i.id: i.shape.element_type for i in computation.instructions}
        for i in computation.instructions:
            operands = i.operand_ids[:2]
            if i.opcode in ("dot", "convolution") and all(shapes[k] in _SINGLE for k in operands):
                i.precision_config.operand_precision[:] = [_HIGHEST, _HIGHEST]
