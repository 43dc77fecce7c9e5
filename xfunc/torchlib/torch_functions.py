"""How each torch function is treated during tracing.

Tables from torch functions to their treatment; the tracer consults them with one dictionary look-up
per call.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._device import _device_constructors

from xfunc.core import device
from xfunc.core.torch_versions import properties
from xfunc.torchlib.foreach import FOREACH


class Kind(enum.Enum):
    """How the tracer treats a torch function."""

    METADATA = enum.auto()  # reads what an aval knows: passed through
    READ = enum.auto()  # needs data
    ARRAY = enum.auto()  # is called by an operator that was given a NumPy array
    REPR = enum.auto()  # prints: shows the aval
    DATA_SHAPED = enum.auto()  # the shape of the result depends on data
    REPEAT = enum.auto()  # likewise, if a tensor says how often each element is repeated
    RANDOM = enum.auto()  # draws from the global generator
    FACTORY = enum.auto()  # makes a tensor: on the device, unless told otherwise
    LITERAL = enum.auto()  # makes a tensor from Python data
    DEVICE = enum.auto()  # asks where a tensor is
    MOVE = enum.auto()  # moves a tensor: off the device is a read
    INDEX = enum.auto()  # reads if it indexes with a boolean mask
    SIZED = enum.auto()  # reads a tensor among its sizes
    IN_PLACE = enum.auto()  # changes its first argument, or `out`
    LISTS = enum.auto()  # calls another function for each tensor of a list
    BACKWARD = enum.auto()  # writes `.grad`
    COPY = enum.auto()  # copy.deepcopy
    GRAPH = enum.auto()  # inspects the autograd graph or bypasses it
    FOREIGN = enum.auto()  # is not part of torch: may have no derivative
    PLAIN = enum.auto()


def functions(*names: str) -> list[Callable[..., object]]:
    """The functions of these names in torch, torch.Tensor and torch.nn.functional."""
    places = (torch, torch.Tensor, torch.nn.functional, torch.special, torch.linalg)
    return [getattr(p, n) for n in names for p in places if callable(getattr(p, n, None))]


GRAD_FN, DATA = properties("grad_fn", "data")
SIZES = frozenset(
    (*properties("shape", "nbytes"), *functions("size", "numel", "nelement", "stride"))
)
LENGTH = torch.Tensor.__len__
(IS_XLA,) = properties("is_xla")
SET_DATA: Callable[..., object] = vars(torch._C.TensorBase)["data"].__set__


@functools.cache
def _table() -> dict[object, Kind]:
    table: dict[object, Kind] = {}

    def put(kind: Kind, functions: Sequence[object]) -> None:
        for f in functions:
            table[f] = kind

    put(Kind.FACTORY, [f for f in _device_constructors() if f not in (torch.tensor,)])
    put(Kind.LITERAL, [torch.tensor, torch.as_tensor, torch.asarray, torch.scalar_tensor])
    put(Kind.LITERAL, [torch.Tensor.new_tensor, torch.Tensor.new])
    put(
        Kind.METADATA,
        [
            *properties("shape", "dtype", "ndim", "layout", "is_sparse", "requires_grad"),
            *properties("is_leaf", "itemsize", "nbytes", "is_cpu", "is_cuda", "is_xla"),
            *properties("names", "is_meta", "is_quantized", "is_nested", "_version", "output_nr"),
            *functions("dim", "size", "numel", "nelement", "ndimension", "element_size", "stride"),
            *functions("is_floating_point", "is_complex", "is_tensor", "is_contiguous", "is_conj"),
            *functions("__len__", "is_same_size", "storage_offset", "get_device", "__hash__"),
            *functions("is_inference", "is_signed", "is_neg", "result_type"),
            *functions("promote_types", "can_cast"),
        ],
    )
    put(
        Kind.READ,
        functions(
            "item", "tolist", "numpy", "cpu", "__bool__", "__int__", "__float__",
            "__index__", "__complex__", "__contains__", "__array_wrap__", "equal", "allclose",
            "is_nonzero", "data_ptr", "untyped_storage", "storage", "__dlpack__",
            "__dlpack_device__", "__reduce_ex__",
            "to_dense", "to_sparse", "histogramdd", "pin_memory", "share_memory_", "storage_type",
            "__cuda_array_interface__", "to_dlpack",
        ),
    )  # fmt: skip
    put(Kind.ARRAY, [torch.Tensor.__array__, torch.Tensor.__rtruediv__])
    put(Kind.REPR, [torch.Tensor.__repr__, torch.Tensor.__format__])
    put(Kind.COPY, [torch.Tensor.__deepcopy__])
    put(Kind.MOVE, [torch.Tensor.to, torch.Tensor.type, torch.Tensor.cuda])
    put(Kind.DEVICE, properties("device"))
    put(Kind.INDEX, [torch.Tensor.__getitem__])
    put(Kind.SIZED, functions("reshape", "view", "expand", "repeat", "tile", "unflatten"))
    put(Kind.SIZED, functions("tensor_split", "pad", "interpolate"))
    put(Kind.SIZED, functions("new_zeros", "new_ones", "new_empty"))
    put(
        Kind.DATA_SHAPED,
        functions(
            "nonzero", "argwhere", "unique", "unique_consecutive", "masked_select", "bincount",
            "one_hot", "where",
        ),
    )  # fmt: skip
    put(Kind.REPEAT, functions("repeat_interleave"))
    random = functions(
        "rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like",
        "normal", "bernoulli", "multinomial", "poisson", "binomial", "dropout", "dropout1d",
        "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout", "feature_dropout",
        "native_dropout", "gumbel_softmax", "rrelu", "fractional_max_pool2d",
        "fractional_max_pool3d", "fractional_max_pool2d_with_indices",
        "fractional_max_pool3d_with_indices", "_standard_gamma", "_sample_dirichlet",
        "scaled_dot_product_attention", "bernoulli_", "normal_",
        "uniform_", "random_", "exponential_", "geometric_", "cauchy_", "log_normal_", "rrelu_",
        "dropout_", "alpha_dropout_", "feature_dropout_", "feature_alpha_dropout_",
        "manual_seed", "seed",
        "multi_head_attention_forward", "lstm", "gru", "rnn_tanh", "rnn_relu",
    )  # fmt: skip
    put(Kind.RANDOM, random)
    put(Kind.BACKWARD, [torch.Tensor.backward, torch.autograd.backward])
    put(Kind.GRAPH, [GRAD_FN, DATA])
    put(Kind.IN_PLACE, [torch.Tensor.__setitem__, SET_DATA])
    put(Kind.LISTS, [*FOREACH])
    put(Kind.PLAIN, [torch.Tensor.requires_grad_, torch.Tensor.retain_grad])
    return table


_kinds: dict[object, Kind] = {}


def kind_of(func: object) -> Kind:
    """How to treat a torch function."""
    kind = _kinds.get(func)
    if kind is None:
        kind = _table().get(func)
        if kind is None:
            name = getattr(func, "__name__", "")
            kind = Kind.IN_PLACE if is_in_place(name) else Kind.PLAIN
            if _is_foreign(func):
                kind = Kind.FOREIGN
        _kinds[func] = kind
    return kind


def is_in_place(name: str) -> bool:
    """Whether a function of torch changes its first argument, as its name says."""
    augmented = name.startswith("__i") and name.endswith("__") and name[3:-2] in _AUGMENTED
    return augmented or (name.endswith("_") and not name.endswith("__"))


def is_in_place_elementwise(func: object) -> bool:
    """Whether a function changes its first argument, element by element with its others."""
    name = getattr(func, "__name__", "")
    if not is_in_place(name) or name == "__imatmul__" or func in FOREACH:
        return False
    plain = name.removesuffix("_")
    if name.startswith("__") or plain in _UNTAGGED:
        return True
    packet = getattr(torch.ops.aten, plain, None)
    overloads = [] if packet is None else packet.overloads()
    return any(torch.Tag.pointwise in getattr(packet, o).tags for o in overloads)


def _is_foreign(func: object) -> bool:
    if isinstance(func, torch._ops.OpOverload):
        return func.namespace not in ("aten", "prims")
    return isinstance(func, torch._ops.OpOverloadPacket) and not func._qualified_op_name.startswith(
        ("aten::", "prims::")
    )


# See NOTE [numbers in forward mode] in `xfunc.trace.rules`.
ARITHMETIC = frozenset(
    functions(
        "add", "sub", "mul", "div", "subtract", "multiply", "divide", "true_divide", "rsub",
        "__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__div__", "__rdiv__",
        "__truediv__", "__rtruediv__",
    )
)  # fmt: skip

_UNTAGGED = frozenset(
    "arctan2 divide floor_divide greater greater_equal less less_equal multiply not_equal "
    "subtract".split()
)
"""Elementwise functions of which torch does not say so."""
_AUGMENTED = frozenset(
    "add sub mul matmul truediv floordiv mod pow lshift rshift and xor or div".split()
)


DRAWS = "something draws from the global random generator, which a traced function must not do"
KEYED = (
    "draw with a key (xf.random.uniform(key, shape) and the like), or let this code draw from one: "
    "`with xf.random.implicit(key):`."
)
"""How to fix a draw from the global generator."""


def is_random_call(
    func: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, object]
) -> bool:
    """Whether this call of a function of `Kind.RANDOM` really draws numbers."""
    name = func.__name__
    if name == "scaled_dot_product_attention":
        return _argument(args, kwargs, 4, "dropout_p", 0.0) > 0.0
    if name == "multi_head_attention_forward":
        training = _argument(args, kwargs, 13, "training", True)
        return training and _argument(args, kwargs, 10, "dropout_p", 0.0) > 0.0
    if "dropout" in name:
        default = 0.0 if name == "native_dropout" else 0.5
        rate = _argument(args, kwargs, 1, "p", default)
        # In Python functions the argument is `training`, otherwise `train`, where None is True.
        training = _argument(args, kwargs, 2, "train", kwargs.get("training", True))
        return (training is None or bool(training)) and rate > 0.0
    if name in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
        first = 3 if isinstance(args[2], (tuple, list)) else 4  # Packed sequences take two places.
        layers, rate, training = args[first + 1 : first + 4]
        return bool(training) and layers > 1 and rate > 0.0
    if name.startswith("fractional_max_pool"):
        return _argument(args, kwargs, 5, "_random_samples", None) is None
    if name in ("rrelu", "rrelu_"):
        return bool(_argument(args, kwargs, 3, "training", False))
    return True


def _argument(
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    position: int,
    name: str,
    default: object,
) -> Any:
    if name in kwargs:
        return kwargs[name]
    return args[position] if len(args) > position else default


def reads_sizes(func: object) -> bool:
    """Whether a function takes sizes or indices; a tensor given as one must be read."""
    kinds = (Kind.FACTORY, Kind.INDEX, Kind.READ)
    return kind_of(func) in kinds or getattr(func, "__name__", "") in _SIZED


_SIZED = frozenset(
    "reshape view expand repeat narrow tile unflatten new_zeros new_ones new_full new_empty item "
    "_local_scalar_dense copy_ __setitem__ narrow select".split()
)


def sizes_read(func: object, args: tuple[object, ...]) -> int:
    """How many leading arguments a factory reads, as sizes or bounds."""
    if func is torch.full:
        return 1
    if func in (torch.linspace, torch.logspace) and torch.Tensor in map(type, args[:2]):
        return 0  # See `xfunc.torchlib.data_dependent`.
    return len(args) if getattr(func, "__name__", "") in _READING_FACTORIES else 0


_READING_FACTORIES = frozenset("zeros ones empty eye arange range linspace logspace".split())


def leaves_device(args: tuple[object, ...], kwargs: Mapping[str, object]) -> bool:
    """Whether a `.to(...)` or `.type(...)` call, with devices as of the trace, asks for data off
    the device.
    """
    for a in (*args[1:], *kwargs.values()):
        if isinstance(a, str) and not a.startswith("torch."):
            a = torch.device(a)
        if isinstance(a, torch.device) and a.type not in (device.TYPE, "meta"):
            return True
    return False


_WHERE = torch.where, torch.Tensor.where


def is_data_shaped(
    kind: Kind, func: object, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> bool:
    """Whether the shape of the result of a call depends on data."""
    if kind is Kind.INDEX:
        return has_mask(args[1])
    if func is torch.nn.functional.one_hot:
        (classes,) = args[1:2] or (kwargs.get("num_classes", -1),)
        return isinstance(classes, int) and classes == -1
    if func in _WHERE:
        return len(args) + len(kwargs) == 1
    return kind is Kind.DATA_SHAPED


def has_mask(index: object) -> bool:
    """Whether an index has a boolean tensor or a tensor bound, so that no shape is fixed."""
    if type(index) is slice:
        return bound_of(index) is not None
    if isinstance(index, torch.Tensor):
        if type(index) is not torch.Tensor:  # It may be a token, which has no dtype.
            return True
        return index.dtype in (torch.bool, torch.uint8)
    return isinstance(index, (tuple, list)) and any(has_mask(i) for i in index)


def bound_of(index: object) -> torch.Tensor | None:
    """A tensor that bounds a slice of an index, if there is one."""
    if isinstance(index, slice):
        bounds = (index.start, index.stop, index.step)
        return next((b for b in bounds if isinstance(b, torch.Tensor)), None)
    if isinstance(index, (tuple, list)):
        return next((b for b in map(bound_of, index) if b is not None), None)
    return None


def is_masked_fill(args: tuple[Any, ...]) -> bool:
    """Whether ``x[mask] = value`` puts one number wherever a boolean mask is true."""
    x, mask, value = args
    if not isinstance(mask, torch.Tensor) or mask.dtype is not torch.bool or not mask.ndim:
        return False
    single = not isinstance(value, torch.Tensor) or value.ndim == 0
    return single and tuple(x.shape[: mask.ndim]) == tuple(mask.shape)


def operation_name(func: object) -> str:
    """The name of a torch function in messages."""
    if func is None:
        return "an input"
    name = getattr(func, "__name__", repr(func))
    owner = getattr(func, "__self__", None)
    if name in ("__get__", "__set__") and owner is not None:
        named: Any = owner.fget if isinstance(owner, property) else owner
        return f"Tensor.{named.__name__}"
    if hasattr(func, "__objclass__") or getattr(func, "__module__", None) == "torch._tensor":
        return f"Tensor.{name}"
    if (place := getattr(func, "__module__", None)) in ("torch.autograd", "torch.foreach"):
        return f"{place}.{name}"
    for module in ("linalg", "fft", "special"):  # torch.linalg.norm is called linalg_norm.
        if name.startswith(f"{module}_"):
            return f"torch.{module}.{name.removeprefix(f'{module}_')}"
    if not hasattr(torch, name) and hasattr(torch.nn.functional, name):
        return f"torch.nn.functional.{name}"
    return f"torch.{name}"
