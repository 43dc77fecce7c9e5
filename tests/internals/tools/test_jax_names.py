"""Names of JAX and torch that xfunc has elsewhere: an AttributeError says where."""

import importlib
import re
import types

import jax
import pytest

import xfunc as xf
from xfunc.tools.jax_names import TABLE, TORCH_TABLE

pytestmark = pytest.mark.quick

NAMES = [(module, name) for module, names in TABLE.items() for name in names]


def test_missing_name_error_has_hint_and_line() -> None:
    with pytest.raises(AttributeError, match="has no pmap") as caught:
        xf.pmap  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]
    first, place, hint = str(caught.value).splitlines()
    assert first == "xf has no pmap, which is JAX's name"
    assert re.fullmatch(r"  at .*test_jax_names.py:\d+ in test_missing\w+: xf.pmap.*", place)
    assert hint == ("Hint: use xf.jit with arrays sharded by xf.device_put, or xf.shard_map.")


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("lax", "xf.scan for lax.scan"),
        ("numpy", "jax.numpy is torch"),
        ("tree_map", "xf.tree.map"),
        ("config.update", "xf.config.set_platform"),
        ("errors.TracerBoolConversionError", "xf.errors.ConcretizationError"),
        ("profiler.start_trace", "with xf.profiler.trace"),
    ],
)
def test_jax_name_hint(path: str, hint: str) -> None:
    value: object = xf
    *modules, last = path.split(".")
    for part in modules:
        value = getattr(value, part)
    with pytest.raises(AttributeError, match=re.escape(hint)):
        getattr(value, last)


def test_unknown_name_error_is_pythons() -> None:
    with pytest.raises(
        AttributeError, match=r"^module 'xfunc' has no attribute 'gradd'$"
    ) as caught:
        xf.gradd  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]
    assert (caught.value.name, caught.value.obj) == ("gradd", xf)
    assert not hasattr(xf, "lax")
    assert getattr(xf.random, "nothing", 3) == 3


@pytest.mark.parametrize("name", TORCH_TABLE)
def test_torch_name_hint(name: str) -> None:
    error = rf"xf has no {name}, which is torch's name(.|\n)*Hint: {re.escape(TORCH_TABLE[name])}$"
    with pytest.raises(AttributeError, match=error):
        getattr(xf, name)


@pytest.mark.parametrize(
    ("module", "name", "hint"),
    [
        *((module, name, TABLE[module][name]) for module, name in NAMES),
        *(("xfunc", *item) for item in TORCH_TABLE.items()),
    ],
)
def test_table_name_is_missing_and_its_hint_names_what_exists(
    module: str, name: str, hint: str
) -> None:
    assert name not in vars(importlib.import_module(module))
    for path in re.findall(r"\bxf((?:\.\w+)+)", hint):
        value: object = xf
        for part in path[1:].split("."):
            value = getattr(value, part)


# Names of JAX's own machinery, some of JAX 0.7 only.
INTERNAL = {
    "xfunc": {
        "ArrayRef",
        "array_ref",
        "custom_transpose",
        "enable_custom_vjp_by_custom_transpose",
        "jax",
        "util",
    },
    "xfunc.debug": {"DebugEffect", "OrderedDebugEffect"},
    "xfunc.export": {
        "DisabledSafetyCheck",
        "default_export_platform",
        "maximum_supported_calling_convention_version",
        "minimum_supported_calling_convention_version",
        "register_namedtuple_serialization",
        "register_pytree_node_serialization",
        "shape_poly_decision",
    },
    "xfunc.profiler": {
        "ProfileData",
        "ProfileEvent",
        "ProfileLine",
        "ProfileOptions",
        "ProfilePlane",
        "register_subprocess",
    },
    "xfunc.random": {"random_gamma_p"},
    "xfunc.sharding": {"AbstractDevice", "ManualAxisType"},
}


@pytest.mark.parametrize("name", [m for m in TABLE if m != "xfunc.config"])
def test_public_name_of_jax_is_ours_or_in_the_table(name: str) -> None:
    theirs = importlib.import_module(name.replace("xfunc", "jax", 1))
    ours = importlib.import_module(name)
    public = {
        n
        for n, value in vars(theirs).items()
        if n[0] != "_" and not (isinstance(value, types.ModuleType) and theirs is not jax)
    }
    known = {*vars(ours), *TABLE[name], *INTERNAL.get(name, ())}
    assert public - known == set()
