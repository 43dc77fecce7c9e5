from collections.abc import Iterable as _Iterable
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar

from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper

DESCRIPTOR: _descriptor.FileDescriptor

class PrimitiveType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRIMITIVE_TYPE_INVALID: _ClassVar[PrimitiveType]
    PRED: _ClassVar[PrimitiveType]
    S2: _ClassVar[PrimitiveType]
    S4: _ClassVar[PrimitiveType]
    S8: _ClassVar[PrimitiveType]
    S16: _ClassVar[PrimitiveType]
    S32: _ClassVar[PrimitiveType]
    S64: _ClassVar[PrimitiveType]
    U2: _ClassVar[PrimitiveType]
    U4: _ClassVar[PrimitiveType]
    U8: _ClassVar[PrimitiveType]
    U16: _ClassVar[PrimitiveType]
    U32: _ClassVar[PrimitiveType]
    U64: _ClassVar[PrimitiveType]
    F16: _ClassVar[PrimitiveType]
    F32: _ClassVar[PrimitiveType]
    BF16: _ClassVar[PrimitiveType]
    F64: _ClassVar[PrimitiveType]
    F8E5M2: _ClassVar[PrimitiveType]
    F8E4M3: _ClassVar[PrimitiveType]
    F8E4M3FN: _ClassVar[PrimitiveType]
    F8E4M3B11FNUZ: _ClassVar[PrimitiveType]
    F8E3M4: _ClassVar[PrimitiveType]
    F8E5M2FNUZ: _ClassVar[PrimitiveType]
    F8E4M3FNUZ: _ClassVar[PrimitiveType]
    F4E2M1FN: _ClassVar[PrimitiveType]
    F8E8M0FNU: _ClassVar[PrimitiveType]
    C64: _ClassVar[PrimitiveType]
    C128: _ClassVar[PrimitiveType]
    TUPLE: _ClassVar[PrimitiveType]
    OPAQUE_TYPE: _ClassVar[PrimitiveType]
    TOKEN: _ClassVar[PrimitiveType]

class FftType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FFT: _ClassVar[FftType]
    IFFT: _ClassVar[FftType]
    RFFT: _ClassVar[FftType]
    IRFFT: _ClassVar[FftType]

PRIMITIVE_TYPE_INVALID: PrimitiveType
PRED: PrimitiveType
S2: PrimitiveType
S4: PrimitiveType
S8: PrimitiveType
S16: PrimitiveType
S32: PrimitiveType
S64: PrimitiveType
U2: PrimitiveType
U4: PrimitiveType
U8: PrimitiveType
U16: PrimitiveType
U32: PrimitiveType
U64: PrimitiveType
F16: PrimitiveType
F32: PrimitiveType
BF16: PrimitiveType
F64: PrimitiveType
F8E5M2: PrimitiveType
F8E4M3: PrimitiveType
F8E4M3FN: PrimitiveType
F8E4M3B11FNUZ: PrimitiveType
F8E3M4: PrimitiveType
F8E5M2FNUZ: PrimitiveType
F8E4M3FNUZ: PrimitiveType
F4E2M1FN: PrimitiveType
F8E8M0FNU: PrimitiveType
C64: PrimitiveType
C128: PrimitiveType
TUPLE: PrimitiveType
OPAQUE_TYPE: PrimitiveType
TOKEN: PrimitiveType
FFT: FftType
IFFT: FftType
RFFT: FftType
IRFFT: FftType

class LayoutProto(_message.Message):
    __slots__ = ("minor_to_major",)
    MINOR_TO_MAJOR_FIELD_NUMBER: _ClassVar[int]
    minor_to_major: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, minor_to_major: _Iterable[int] | None = ...) -> None: ...

class ShapeProto(_message.Message):
    __slots__ = ("dimensions", "element_type", "is_dynamic_dimension", "layout", "tuple_shapes")
    ELEMENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    TUPLE_SHAPES_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    IS_DYNAMIC_DIMENSION_FIELD_NUMBER: _ClassVar[int]
    element_type: PrimitiveType
    dimensions: _containers.RepeatedScalarFieldContainer[int]
    tuple_shapes: _containers.RepeatedCompositeFieldContainer[ShapeProto]
    layout: LayoutProto
    is_dynamic_dimension: _containers.RepeatedScalarFieldContainer[bool]
    def __init__(
        self,
        element_type: PrimitiveType | str | None = ...,
        dimensions: _Iterable[int] | None = ...,
        tuple_shapes: _Iterable[ShapeProto | _Mapping] | None = ...,
        layout: LayoutProto | _Mapping | None = ...,
        is_dynamic_dimension: _Iterable[bool] | None = ...,
    ) -> None: ...

class ProgramShapeProto(_message.Message):
    __slots__ = ("parameter_names", "parameters", "result")
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_NAMES_FIELD_NUMBER: _ClassVar[int]
    parameters: _containers.RepeatedCompositeFieldContainer[ShapeProto]
    result: ShapeProto
    parameter_names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(
        self,
        parameters: _Iterable[ShapeProto | _Mapping] | None = ...,
        result: ShapeProto | _Mapping | None = ...,
        parameter_names: _Iterable[str] | None = ...,
    ) -> None: ...

class OpMetadata(_message.Message):
    __slots__ = ("op_name", "op_type", "source_file", "source_line")
    OP_TYPE_FIELD_NUMBER: _ClassVar[int]
    OP_NAME_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FILE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_LINE_FIELD_NUMBER: _ClassVar[int]
    op_type: str
    op_name: str
    source_file: str
    source_line: int
    def __init__(
        self,
        op_type: str | None = ...,
        op_name: str | None = ...,
        source_file: str | None = ...,
        source_line: int | None = ...,
    ) -> None: ...

class LiteralProto(_message.Message):
    __slots__ = (
        "bf16s",
        "c64s",
        "c128s",
        "f8e4m3fns",
        "f8e4m3fnuzs",
        "f8e5m2fnuzs",
        "f8e5m2s",
        "f8e8m0fnus",
        "f16s",
        "f32s",
        "f64s",
        "preds",
        "s8s",
        "s16s",
        "s32s",
        "s64s",
        "shape",
        "u8s",
        "u16s",
        "u32s",
        "u64s",
    )
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    PREDS_FIELD_NUMBER: _ClassVar[int]
    U8S_FIELD_NUMBER: _ClassVar[int]
    S32S_FIELD_NUMBER: _ClassVar[int]
    S64S_FIELD_NUMBER: _ClassVar[int]
    U32S_FIELD_NUMBER: _ClassVar[int]
    U64S_FIELD_NUMBER: _ClassVar[int]
    F32S_FIELD_NUMBER: _ClassVar[int]
    F64S_FIELD_NUMBER: _ClassVar[int]
    F16S_FIELD_NUMBER: _ClassVar[int]
    C64S_FIELD_NUMBER: _ClassVar[int]
    BF16S_FIELD_NUMBER: _ClassVar[int]
    S8S_FIELD_NUMBER: _ClassVar[int]
    U16S_FIELD_NUMBER: _ClassVar[int]
    S16S_FIELD_NUMBER: _ClassVar[int]
    C128S_FIELD_NUMBER: _ClassVar[int]
    F8E5M2S_FIELD_NUMBER: _ClassVar[int]
    F8E4M3FNS_FIELD_NUMBER: _ClassVar[int]
    F8E5M2FNUZS_FIELD_NUMBER: _ClassVar[int]
    F8E4M3FNUZS_FIELD_NUMBER: _ClassVar[int]
    F8E8M0FNUS_FIELD_NUMBER: _ClassVar[int]
    shape: ShapeProto
    preds: _containers.RepeatedScalarFieldContainer[bool]
    u8s: bytes
    s32s: _containers.RepeatedScalarFieldContainer[int]
    s64s: _containers.RepeatedScalarFieldContainer[int]
    u32s: _containers.RepeatedScalarFieldContainer[int]
    u64s: _containers.RepeatedScalarFieldContainer[int]
    f32s: _containers.RepeatedScalarFieldContainer[float]
    f64s: _containers.RepeatedScalarFieldContainer[float]
    f16s: bytes
    c64s: _containers.RepeatedScalarFieldContainer[float]
    bf16s: bytes
    s8s: bytes
    u16s: bytes
    s16s: bytes
    c128s: _containers.RepeatedScalarFieldContainer[float]
    f8e5m2s: bytes
    f8e4m3fns: bytes
    f8e5m2fnuzs: bytes
    f8e4m3fnuzs: bytes
    f8e8m0fnus: bytes
    def __init__(
        self,
        shape: ShapeProto | _Mapping | None = ...,
        preds: _Iterable[bool] | None = ...,
        u8s: bytes | None = ...,
        s32s: _Iterable[int] | None = ...,
        s64s: _Iterable[int] | None = ...,
        u32s: _Iterable[int] | None = ...,
        u64s: _Iterable[int] | None = ...,
        f32s: _Iterable[float] | None = ...,
        f64s: _Iterable[float] | None = ...,
        f16s: bytes | None = ...,
        c64s: _Iterable[float] | None = ...,
        bf16s: bytes | None = ...,
        s8s: bytes | None = ...,
        u16s: bytes | None = ...,
        s16s: bytes | None = ...,
        c128s: _Iterable[float] | None = ...,
        f8e5m2s: bytes | None = ...,
        f8e4m3fns: bytes | None = ...,
        f8e5m2fnuzs: bytes | None = ...,
        f8e4m3fnuzs: bytes | None = ...,
        f8e8m0fnus: bytes | None = ...,
    ) -> None: ...

class DotDimensionNumbers(_message.Message):
    __slots__ = (
        "lhs_batch_dimensions",
        "lhs_contracting_dimensions",
        "rhs_batch_dimensions",
        "rhs_contracting_dimensions",
    )
    LHS_CONTRACTING_DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    RHS_CONTRACTING_DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    LHS_BATCH_DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    RHS_BATCH_DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    lhs_contracting_dimensions: _containers.RepeatedScalarFieldContainer[int]
    rhs_contracting_dimensions: _containers.RepeatedScalarFieldContainer[int]
    lhs_batch_dimensions: _containers.RepeatedScalarFieldContainer[int]
    rhs_batch_dimensions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(
        self,
        lhs_contracting_dimensions: _Iterable[int] | None = ...,
        rhs_contracting_dimensions: _Iterable[int] | None = ...,
        lhs_batch_dimensions: _Iterable[int] | None = ...,
        rhs_batch_dimensions: _Iterable[int] | None = ...,
    ) -> None: ...

class FrontendAttributes(_message.Message):
    __slots__ = ("map",)
    class MapEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: str | None = ..., value: str | None = ...) -> None: ...

    MAP_FIELD_NUMBER: _ClassVar[int]
    map: _containers.ScalarMap[str, str]
    def __init__(self, map: _Mapping[str, str] | None = ...) -> None: ...

class OpSharding(_message.Message):
    __slots__ = (
        "iota_reshape_dims",
        "iota_transpose_perm",
        "is_shard_group",
        "last_tile_dims",
        "replicate_on_last_tile_dim",
        "shard_group_id",
        "shard_group_type",
        "tile_assignment_devices",
        "tile_assignment_dimensions",
        "tuple_shardings",
        "type",
    )
    class Type(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        REPLICATED: _ClassVar[OpSharding.Type]
        MAXIMAL: _ClassVar[OpSharding.Type]
        TUPLE: _ClassVar[OpSharding.Type]
        OTHER: _ClassVar[OpSharding.Type]
        MANUAL: _ClassVar[OpSharding.Type]
        UNKNOWN: _ClassVar[OpSharding.Type]

    REPLICATED: OpSharding.Type
    MAXIMAL: OpSharding.Type
    TUPLE: OpSharding.Type
    OTHER: OpSharding.Type
    MANUAL: OpSharding.Type
    UNKNOWN: OpSharding.Type
    class ShardGroupType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        AS: _ClassVar[OpSharding.ShardGroupType]
        LIKE: _ClassVar[OpSharding.ShardGroupType]

    AS: OpSharding.ShardGroupType
    LIKE: OpSharding.ShardGroupType
    TYPE_FIELD_NUMBER: _ClassVar[int]
    TILE_ASSIGNMENT_DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    TILE_ASSIGNMENT_DEVICES_FIELD_NUMBER: _ClassVar[int]
    TUPLE_SHARDINGS_FIELD_NUMBER: _ClassVar[int]
    REPLICATE_ON_LAST_TILE_DIM_FIELD_NUMBER: _ClassVar[int]
    LAST_TILE_DIMS_FIELD_NUMBER: _ClassVar[int]
    IOTA_RESHAPE_DIMS_FIELD_NUMBER: _ClassVar[int]
    IOTA_TRANSPOSE_PERM_FIELD_NUMBER: _ClassVar[int]
    IS_SHARD_GROUP_FIELD_NUMBER: _ClassVar[int]
    SHARD_GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    SHARD_GROUP_TYPE_FIELD_NUMBER: _ClassVar[int]
    type: OpSharding.Type
    tile_assignment_dimensions: _containers.RepeatedScalarFieldContainer[int]
    tile_assignment_devices: _containers.RepeatedScalarFieldContainer[int]
    tuple_shardings: _containers.RepeatedCompositeFieldContainer[OpSharding]
    replicate_on_last_tile_dim: bool
    last_tile_dims: _containers.RepeatedScalarFieldContainer[OpSharding.Type]
    iota_reshape_dims: _containers.RepeatedScalarFieldContainer[int]
    iota_transpose_perm: _containers.RepeatedScalarFieldContainer[int]
    is_shard_group: bool
    shard_group_id: int
    shard_group_type: OpSharding.ShardGroupType
    def __init__(
        self,
        type: OpSharding.Type | str | None = ...,
        tile_assignment_dimensions: _Iterable[int] | None = ...,
        tile_assignment_devices: _Iterable[int] | None = ...,
        tuple_shardings: _Iterable[OpSharding | _Mapping] | None = ...,
        replicate_on_last_tile_dim: bool = ...,
        last_tile_dims: _Iterable[OpSharding.Type | str] | None = ...,
        iota_reshape_dims: _Iterable[int] | None = ...,
        iota_transpose_perm: _Iterable[int] | None = ...,
        is_shard_group: bool = ...,
        shard_group_id: int | None = ...,
        shard_group_type: OpSharding.ShardGroupType | str | None = ...,
    ) -> None: ...

class TriangularSolveOptions(_message.Message):
    __slots__ = ("left_side", "lower", "transpose_a", "unit_diagonal")
    class Transpose(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        TRANSPOSE_INVALID: _ClassVar[TriangularSolveOptions.Transpose]
        NO_TRANSPOSE: _ClassVar[TriangularSolveOptions.Transpose]
        TRANSPOSE: _ClassVar[TriangularSolveOptions.Transpose]
        ADJOINT: _ClassVar[TriangularSolveOptions.Transpose]

    TRANSPOSE_INVALID: TriangularSolveOptions.Transpose
    NO_TRANSPOSE: TriangularSolveOptions.Transpose
    TRANSPOSE: TriangularSolveOptions.Transpose
    ADJOINT: TriangularSolveOptions.Transpose
    LEFT_SIDE_FIELD_NUMBER: _ClassVar[int]
    LOWER_FIELD_NUMBER: _ClassVar[int]
    UNIT_DIAGONAL_FIELD_NUMBER: _ClassVar[int]
    TRANSPOSE_A_FIELD_NUMBER: _ClassVar[int]
    left_side: bool
    lower: bool
    unit_diagonal: bool
    transpose_a: TriangularSolveOptions.Transpose
    def __init__(
        self,
        left_side: bool = ...,
        lower: bool = ...,
        unit_diagonal: bool = ...,
        transpose_a: TriangularSolveOptions.Transpose | str | None = ...,
    ) -> None: ...

class CholeskyOptions(_message.Message):
    __slots__ = ("lower",)
    LOWER_FIELD_NUMBER: _ClassVar[int]
    lower: bool
    def __init__(self, lower: bool = ...) -> None: ...

class ReplicaGroup(_message.Message):
    __slots__ = ("replica_ids",)
    REPLICA_IDS_FIELD_NUMBER: _ClassVar[int]
    replica_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, replica_ids: _Iterable[int] | None = ...) -> None: ...

class IotaReplicaGroupListProto(_message.Message):
    __slots__ = (
        "iota_reshape_dims",
        "iota_transpose_perm",
        "num_devices_per_group",
        "num_replica_groups",
    )
    NUM_REPLICA_GROUPS_FIELD_NUMBER: _ClassVar[int]
    NUM_DEVICES_PER_GROUP_FIELD_NUMBER: _ClassVar[int]
    IOTA_RESHAPE_DIMS_FIELD_NUMBER: _ClassVar[int]
    IOTA_TRANSPOSE_PERM_FIELD_NUMBER: _ClassVar[int]
    num_replica_groups: int
    num_devices_per_group: int
    iota_reshape_dims: _containers.RepeatedScalarFieldContainer[int]
    iota_transpose_perm: _containers.RepeatedScalarFieldContainer[int]
    def __init__(
        self,
        num_replica_groups: int | None = ...,
        num_devices_per_group: int | None = ...,
        iota_reshape_dims: _Iterable[int] | None = ...,
        iota_transpose_perm: _Iterable[int] | None = ...,
    ) -> None: ...

class CollectiveDeviceListProto(_message.Message):
    __slots__ = ("iota_replica_group_list", "replica_groups")
    REPLICA_GROUPS_FIELD_NUMBER: _ClassVar[int]
    IOTA_REPLICA_GROUP_LIST_FIELD_NUMBER: _ClassVar[int]
    replica_groups: _containers.RepeatedCompositeFieldContainer[ReplicaGroup]
    iota_replica_group_list: IotaReplicaGroupListProto
    def __init__(
        self,
        replica_groups: _Iterable[ReplicaGroup | _Mapping] | None = ...,
        iota_replica_group_list: IotaReplicaGroupListProto | _Mapping | None = ...,
    ) -> None: ...

class MeshAxesReplicaGroupListProto(_message.Message):
    __slots__ = ("axes", "mesh")
    MESH_FIELD_NUMBER: _ClassVar[int]
    AXES_FIELD_NUMBER: _ClassVar[int]
    mesh: MeshProto
    axes: _containers.RepeatedCompositeFieldContainer[AxisRefProto]
    def __init__(
        self,
        mesh: MeshProto | _Mapping | None = ...,
        axes: _Iterable[AxisRefProto | _Mapping] | None = ...,
    ) -> None: ...

class MeshProto(_message.Message):
    __slots__ = ("axes", "device_ids", "iota_transform")
    class MeshAxis(_message.Message):
        __slots__ = ("name", "size")
        NAME_FIELD_NUMBER: _ClassVar[int]
        SIZE_FIELD_NUMBER: _ClassVar[int]
        name: str
        size: int
        def __init__(self, name: str | None = ..., size: int | None = ...) -> None: ...

    class IotaTransform(_message.Message):
        __slots__ = ("reshape_dims", "transpose_perm")
        RESHAPE_DIMS_FIELD_NUMBER: _ClassVar[int]
        TRANSPOSE_PERM_FIELD_NUMBER: _ClassVar[int]
        reshape_dims: _containers.RepeatedScalarFieldContainer[int]
        transpose_perm: _containers.RepeatedScalarFieldContainer[int]
        def __init__(
            self,
            reshape_dims: _Iterable[int] | None = ...,
            transpose_perm: _Iterable[int] | None = ...,
        ) -> None: ...

    AXES_FIELD_NUMBER: _ClassVar[int]
    DEVICE_IDS_FIELD_NUMBER: _ClassVar[int]
    IOTA_TRANSFORM_FIELD_NUMBER: _ClassVar[int]
    axes: _containers.RepeatedCompositeFieldContainer[MeshProto.MeshAxis]
    device_ids: _containers.RepeatedScalarFieldContainer[int]
    iota_transform: MeshProto.IotaTransform
    def __init__(
        self,
        axes: _Iterable[MeshProto.MeshAxis | _Mapping] | None = ...,
        device_ids: _Iterable[int] | None = ...,
        iota_transform: MeshProto.IotaTransform | _Mapping | None = ...,
    ) -> None: ...

class AxisRefProto(_message.Message):
    __slots__ = ("mesh_axis_index", "sub_axis_info")
    class SubAxis(_message.Message):
        __slots__ = ("pre_size", "size")
        PRE_SIZE_FIELD_NUMBER: _ClassVar[int]
        SIZE_FIELD_NUMBER: _ClassVar[int]
        pre_size: int
        size: int
        def __init__(self, pre_size: int | None = ..., size: int | None = ...) -> None: ...

    MESH_AXIS_INDEX_FIELD_NUMBER: _ClassVar[int]
    SUB_AXIS_INFO_FIELD_NUMBER: _ClassVar[int]
    mesh_axis_index: int
    sub_axis_info: AxisRefProto.SubAxis
    def __init__(
        self,
        mesh_axis_index: int | None = ...,
        sub_axis_info: AxisRefProto.SubAxis | _Mapping | None = ...,
    ) -> None: ...

class SourceTarget(_message.Message):
    __slots__ = ("source", "target")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    source: int
    target: int
    def __init__(self, source: int | None = ..., target: int | None = ...) -> None: ...

class PrecisionConfig(_message.Message):
    __slots__ = ("operand_precision",)
    class Precision(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        DEFAULT: _ClassVar[PrecisionConfig.Precision]
        HIGH: _ClassVar[PrecisionConfig.Precision]
        HIGHEST: _ClassVar[PrecisionConfig.Precision]
        PACKED_NIBBLE: _ClassVar[PrecisionConfig.Precision]

    DEFAULT: PrecisionConfig.Precision
    HIGH: PrecisionConfig.Precision
    HIGHEST: PrecisionConfig.Precision
    PACKED_NIBBLE: PrecisionConfig.Precision
    OPERAND_PRECISION_FIELD_NUMBER: _ClassVar[int]
    operand_precision: _containers.RepeatedScalarFieldContainer[PrecisionConfig.Precision]
    def __init__(
        self, operand_precision: _Iterable[PrecisionConfig.Precision | str] | None = ...
    ) -> None: ...

class HloInstructionProto(_message.Message):
    __slots__ = (
        "backend_config",
        "batch_group_count",
        "called_computation_ids",
        "channel_id",
        "cholesky_options",
        "collective_device_list",
        "comparison_direction",
        "comparison_type",
        "control_predecessor_ids",
        "custom_call_api_version",
        "custom_call_has_side_effect",
        "custom_call_target",
        "dimensions",
        "dot_dimension_numbers",
        "dynamic_slice_sizes",
        "feature_group_count",
        "fft_length",
        "fft_type",
        "frontend_attributes",
        "id",
        "iota_collective_device_list",
        "literal",
        "mesh_axes_replica_group_list",
        "metadata",
        "name",
        "opcode",
        "operand_ids",
        "parameter_number",
        "precision_config",
        "replica_groups",
        "shape",
        "sharding",
        "slice_dimensions",
        "source_target_pairs",
        "triangular_solve_options",
        "tuple_index",
        "use_global_device_ids",
    )
    class SliceDimensions(_message.Message):
        __slots__ = ("limit", "start", "stride")
        START_FIELD_NUMBER: _ClassVar[int]
        LIMIT_FIELD_NUMBER: _ClassVar[int]
        STRIDE_FIELD_NUMBER: _ClassVar[int]
        start: int
        limit: int
        stride: int
        def __init__(
            self, start: int | None = ..., limit: int | None = ..., stride: int | None = ...
        ) -> None: ...

    NAME_FIELD_NUMBER: _ClassVar[int]
    OPCODE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    LITERAL_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_NUMBER_FIELD_NUMBER: _ClassVar[int]
    TUPLE_INDEX_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    SLICE_DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    DYNAMIC_SLICE_SIZES_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_ID_FIELD_NUMBER: _ClassVar[int]
    CUSTOM_CALL_TARGET_FIELD_NUMBER: _ClassVar[int]
    DOT_DIMENSION_NUMBERS_FIELD_NUMBER: _ClassVar[int]
    FFT_TYPE_FIELD_NUMBER: _ClassVar[int]
    FFT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    OPERAND_IDS_FIELD_NUMBER: _ClassVar[int]
    CONTROL_PREDECESSOR_IDS_FIELD_NUMBER: _ClassVar[int]
    CALLED_COMPUTATION_IDS_FIELD_NUMBER: _ClassVar[int]
    SHARDING_FIELD_NUMBER: _ClassVar[int]
    BACKEND_CONFIG_FIELD_NUMBER: _ClassVar[int]
    REPLICA_GROUPS_FIELD_NUMBER: _ClassVar[int]
    FEATURE_GROUP_COUNT_FIELD_NUMBER: _ClassVar[int]
    PRECISION_CONFIG_FIELD_NUMBER: _ClassVar[int]
    SOURCE_TARGET_PAIRS_FIELD_NUMBER: _ClassVar[int]
    BATCH_GROUP_COUNT_FIELD_NUMBER: _ClassVar[int]
    TRIANGULAR_SOLVE_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    CHOLESKY_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    COMPARISON_DIRECTION_FIELD_NUMBER: _ClassVar[int]
    CUSTOM_CALL_HAS_SIDE_EFFECT_FIELD_NUMBER: _ClassVar[int]
    FRONTEND_ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    USE_GLOBAL_DEVICE_IDS_FIELD_NUMBER: _ClassVar[int]
    COMPARISON_TYPE_FIELD_NUMBER: _ClassVar[int]
    CUSTOM_CALL_API_VERSION_FIELD_NUMBER: _ClassVar[int]
    COLLECTIVE_DEVICE_LIST_FIELD_NUMBER: _ClassVar[int]
    IOTA_COLLECTIVE_DEVICE_LIST_FIELD_NUMBER: _ClassVar[int]
    MESH_AXES_REPLICA_GROUP_LIST_FIELD_NUMBER: _ClassVar[int]
    name: str
    opcode: str
    shape: ShapeProto
    metadata: OpMetadata
    literal: LiteralProto
    parameter_number: int
    tuple_index: int
    dimensions: _containers.RepeatedScalarFieldContainer[int]
    slice_dimensions: _containers.RepeatedCompositeFieldContainer[
        HloInstructionProto.SliceDimensions
    ]
    dynamic_slice_sizes: _containers.RepeatedScalarFieldContainer[int]
    channel_id: int
    custom_call_target: str
    dot_dimension_numbers: DotDimensionNumbers
    fft_type: FftType
    fft_length: _containers.RepeatedScalarFieldContainer[int]
    id: int
    operand_ids: _containers.RepeatedScalarFieldContainer[int]
    control_predecessor_ids: _containers.RepeatedScalarFieldContainer[int]
    called_computation_ids: _containers.RepeatedScalarFieldContainer[int]
    sharding: OpSharding
    backend_config: bytes
    replica_groups: _containers.RepeatedCompositeFieldContainer[ReplicaGroup]
    feature_group_count: int
    precision_config: PrecisionConfig
    source_target_pairs: _containers.RepeatedCompositeFieldContainer[SourceTarget]
    batch_group_count: int
    triangular_solve_options: TriangularSolveOptions
    cholesky_options: CholeskyOptions
    comparison_direction: str
    custom_call_has_side_effect: bool
    frontend_attributes: FrontendAttributes
    use_global_device_ids: bool
    comparison_type: str
    custom_call_api_version: int
    collective_device_list: CollectiveDeviceListProto
    iota_collective_device_list: IotaReplicaGroupListProto
    mesh_axes_replica_group_list: MeshAxesReplicaGroupListProto
    def __init__(
        self,
        name: str | None = ...,
        opcode: str | None = ...,
        shape: ShapeProto | _Mapping | None = ...,
        metadata: OpMetadata | _Mapping | None = ...,
        literal: LiteralProto | _Mapping | None = ...,
        parameter_number: int | None = ...,
        tuple_index: int | None = ...,
        dimensions: _Iterable[int] | None = ...,
        slice_dimensions: _Iterable[HloInstructionProto.SliceDimensions | _Mapping] | None = ...,
        dynamic_slice_sizes: _Iterable[int] | None = ...,
        channel_id: int | None = ...,
        custom_call_target: str | None = ...,
        dot_dimension_numbers: DotDimensionNumbers | _Mapping | None = ...,
        fft_type: FftType | str | None = ...,
        fft_length: _Iterable[int] | None = ...,
        id: int | None = ...,
        operand_ids: _Iterable[int] | None = ...,
        control_predecessor_ids: _Iterable[int] | None = ...,
        called_computation_ids: _Iterable[int] | None = ...,
        sharding: OpSharding | _Mapping | None = ...,
        backend_config: bytes | None = ...,
        replica_groups: _Iterable[ReplicaGroup | _Mapping] | None = ...,
        feature_group_count: int | None = ...,
        precision_config: PrecisionConfig | _Mapping | None = ...,
        source_target_pairs: _Iterable[SourceTarget | _Mapping] | None = ...,
        batch_group_count: int | None = ...,
        triangular_solve_options: TriangularSolveOptions | _Mapping | None = ...,
        cholesky_options: CholeskyOptions | _Mapping | None = ...,
        comparison_direction: str | None = ...,
        custom_call_has_side_effect: bool = ...,
        frontend_attributes: FrontendAttributes | _Mapping | None = ...,
        use_global_device_ids: bool = ...,
        comparison_type: str | None = ...,
        custom_call_api_version: int | None = ...,
        collective_device_list: CollectiveDeviceListProto | _Mapping | None = ...,
        iota_collective_device_list: IotaReplicaGroupListProto | _Mapping | None = ...,
        mesh_axes_replica_group_list: MeshAxesReplicaGroupListProto | _Mapping | None = ...,
    ) -> None: ...

class HloComputationProto(_message.Message):
    __slots__ = ("id", "instructions", "name", "program_shape", "root_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTIONS_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_SHAPE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    ROOT_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    instructions: _containers.RepeatedCompositeFieldContainer[HloInstructionProto]
    program_shape: ProgramShapeProto
    id: int
    root_id: int
    def __init__(
        self,
        name: str | None = ...,
        instructions: _Iterable[HloInstructionProto | _Mapping] | None = ...,
        program_shape: ProgramShapeProto | _Mapping | None = ...,
        id: int | None = ...,
        root_id: int | None = ...,
    ) -> None: ...

class HloModuleProto(_message.Message):
    __slots__ = (
        "computations",
        "entry_computation_id",
        "entry_computation_name",
        "frontend_attributes",
        "host_program_shape",
        "id",
        "name",
    )
    NAME_FIELD_NUMBER: _ClassVar[int]
    ENTRY_COMPUTATION_NAME_FIELD_NUMBER: _ClassVar[int]
    COMPUTATIONS_FIELD_NUMBER: _ClassVar[int]
    HOST_PROGRAM_SHAPE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    ENTRY_COMPUTATION_ID_FIELD_NUMBER: _ClassVar[int]
    FRONTEND_ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    entry_computation_name: str
    computations: _containers.RepeatedCompositeFieldContainer[HloComputationProto]
    host_program_shape: ProgramShapeProto
    id: int
    entry_computation_id: int
    frontend_attributes: FrontendAttributes
    def __init__(
        self,
        name: str | None = ...,
        entry_computation_name: str | None = ...,
        computations: _Iterable[HloComputationProto | _Mapping] | None = ...,
        host_program_shape: ProgramShapeProto | _Mapping | None = ...,
        id: int | None = ...,
        entry_computation_id: int | None = ...,
        frontend_attributes: FrontendAttributes | _Mapping | None = ...,
    ) -> None: ...
