"""Compiling ahead of time: names of targets, the choice of a compiler, and time limits."""

import pytest
import torch

import xfunc as xf
from xfunc.aot import topology_of
from xfunc.errors import CompileError

pytestmark = pytest.mark.quick


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XFUNC_CACHE_DIR", str(tmp_path / "cache"))


def lower():
    return xf.jit(torch.tanh).lower(xf.ShapeDtypeStruct((8, 8), torch.float32))


@pytest.mark.parametrize(
    ("target", "name", "devices", "options"),
    [
        ("tpu:v6e:16x16", "v6e:16x16", 256, {}),
        ("tpu:v6e-256", "v6e:16x16", 256, {}),
        ("v6e-8", "v6e:2x4", 8, {}),
        ("v6e-1", "v6e:1x1", 1, {"chips_per_host_bounds": [1, 1, 1]}),
        ("v5litepod-16", "v5e:4x4", 16, {}),
        ("tpu:v5litepod:2x2", "v5e:2x2", 4, {}),
        ("v5p-8", "v5p:2x2x1", 4, {}),  # cores, of which a chip has two
        ("tpu:v5p-128", "v5p:4x4x4", 64, {}),
        ("tpu:v4:4x4x8_twisted", "v4:4x4x8_twisted", 128, {"chip_config_name": "megacore"}),
        ("v2:2x2", "v2:2x2", 8, {}),
        ("tpu7x:2x2x1", "tpu7x:2x2x1", 8, {}),  # cores, each with memory of its own
        ("tpu:tpu7x:4x4x4", "tpu7x:4x4x4", 128, {}),
    ],
)
def test_topology_of_names(target, name, devices, options):
    topology = topology_of(target)
    assert (topology.name, topology.devices, topology.options) == (name, devices, options)


def test_topology_of_chip_memory():
    assert topology_of("v6e-4").memory == 31996 * 2**20
    assert topology_of("v2:2x2").memory is None


@pytest.mark.parametrize(
    ("target", "hint"),
    [
        ("v6e-7", r"use one of v6e-1, v6e-4, .*, v6e-256, or give a grid: v6e:2x2"),
        ("v5p-9", r"use one of v5p-8, .*, v5p-12288, or give a grid: v5p:2x2x1"),
        ("v6e", "name a TPU: tpu:v6e:16x16"),
        ("v6e:0x2", "name a TPU"),
        ("gpu:h100", "name a TPU"),
        (256, "name a TPU"),
    ],
)
def test_topology_of_unknown_target(target, hint):
    with pytest.raises(ValueError, match=rf"unknown target '?{target}'?\n  at .*\nHint: .*{hint}"):
        topology_of(target)


def test_tpu_compiler_missing_raises(tmp_path, monkeypatch):
    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\necho 'No package metadata was found for jax' >&2; exit 1\n")
    bare.chmod(0o755)
    for path, says in ((tmp_path / "none", "No such file"), (bare, "No package metadata")):
        monkeypatch.setattr(xf.config, "tpu_compiler", str(path))
        wanted = f"cannot compile for TPUs: .*{says}(.|\n)*'installed'"
        with pytest.raises(CompileError, match=wanted):
            lower().compile("v6e-1")


@pytest.mark.parametrize("setting", [None, 3])
def test_tpu_compiler_invalid_setting(setting, monkeypatch):
    monkeypatch.setattr(xf.config, "tpu_compiler", setting)
    with pytest.raises(ValueError, match=rf"tpu_compiler is {setting}, no name(.|\n)*'installed'"):
        lower().compile("v6e-1")


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan"), "1"])
def test_compile_invalid_timeout(timeout):
    with pytest.raises(ValueError, match=r"was given timeout=(.|\n)*Hint: give seconds, above 0"):
        lower().compile("v6e-1", timeout=timeout)


def test_compile_timeout_without_target():
    with pytest.raises(ValueError, match=r"a timeout, but no target(.|\n)*Hint: leave it out"):
        lower().compile(timeout=10)
