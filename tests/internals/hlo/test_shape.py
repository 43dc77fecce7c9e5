import pickle

import pytest
import torch

from xfunc.hlo import InvalidHloError, Shape
from xfunc.hlo import hlo_pb2 as pb

from .conftest import Lower

pytestmark = pytest.mark.quick

F32 = Shape(torch.float32, (3, 4))


def test_shape_of_array():
    assert (F32.dtype, F32.dims, F32.is_tuple, F32.bytes) == (torch.float32, (3, 4), False, 48)
    assert str(F32) == "f32[3,4]"
    assert repr(F32) == "Shape(f32[3,4])"
    assert str(Shape(torch.bool)) == "pred[]"
    assert Shape(torch.float32, [3, 4]) == F32
    assert Shape(torch.float32, (4, 3)) != F32
    assert len({F32, Shape(torch.float32, torch.Size([3, 4]))}) == 1
    assert pickle.loads(pickle.dumps(F32)) == F32


def test_shape_of_tuple():
    shape = Shape.of_tuple([F32, Shape.of_tuple([]), Shape(torch.bfloat16, (5,))])
    assert str(shape) == "(f32[3,4], (), bf16[5])"
    assert shape.is_tuple
    assert shape.bytes == 58
    assert shape.dims == ()
    assert Shape.from_proto(shape.to_proto()) == shape
    assert not shape.to_proto().dimensions
    with pytest.raises(
        InvalidHloError, match=r"\(f32\[3,4\], \(\), bf16\[5\]\) has no torch dtype"
    ):
        _ = shape.dtype


def test_shape_layout_is_row_major_and_ignored():
    proto = F32.to_proto()
    assert list(proto.layout.minor_to_major) == [1, 0]
    proto.layout.minor_to_major[:] = [0, 1]
    assert Shape.from_proto(proto) == F32
    assert Shape(torch.int8).to_proto().HasField("layout")


def test_shape_of_types_without_torch_dtype():
    token = Shape.from_proto(pb.ShapeProto(element_type=pb.TOKEN))
    assert (str(token), token.bytes) == ("token[]", 0)
    assert token.to_proto() == pb.ShapeProto(element_type=pb.TOKEN)
    assert Shape.from_proto(pb.ShapeProto(element_type=pb.S4, dimensions=[3])).bytes == 2
    with pytest.raises(InvalidHloError, match=r"token\[\] has no torch dtype"):
        _ = token.dtype


def test_shape_errors():
    with pytest.raises(InvalidHloError, match=r"XLA has no element type for torch\.quint8"):
        Shape(torch.quint8)
    with pytest.raises(InvalidHloError, match="unknown element type 0"):
        Shape.from_proto(pb.ShapeProto())
    dynamic = pb.ShapeProto(element_type=pb.F32, dimensions=[3], is_dynamic_dimension=[True])
    with pytest.raises(InvalidHloError, match="dynamic size"):
        Shape.from_proto(dynamic)


@pytest.mark.parametrize(
    "dtype",
    (
        "bool int8 int16 int32 int64 uint8 float16 bfloat16 float32 float64 complex64 complex128"
    ).split(),
)
def test_shape_equals_torch_xla_shape(lower: Lower, dtype: str):
    like = torch.zeros(2, 3, dtype=getattr(torch, dtype))
    module = lower(lambda x: [x.reshape(3, 2)], [like])
    (parameter,) = module.entry.parameters
    assert parameter.shape == Shape(like.dtype, (2, 3))
    assert parameter.bytes == like.nbytes
    theirs = pb.ShapeProto.FromString(parameter.proto.shape.SerializeToString())
    theirs.DiscardUnknownFields()  # type: ignore[attr-defined]
    assert parameter.shape.to_proto() == theirs
    text = str(module)
    assert f" = {parameter.shape}{{1,0}} parameter(0)" in text
