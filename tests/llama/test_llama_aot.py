"""The command that reports what a step of the Llama example takes on TPUs."""

import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

import xfunc as xf
from examples.llama import aot, config, model
from examples.llama.aot import Case
from xfunc.aot import Buffer
from xfunc.stages import Lowered

ROOT = Path(__file__).parents[2]
TINY = ["--config", "tiny", "--topology", "v6e:2x2", "--seq", "64"]
MESH = ["--mesh", "fsdp=2,tensor=2"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([*TINY, *MESH], "a model alone has no batch: give --batch"),
        (
            [*TINY, "--mesh", "fsdp=8", "--batch", "8"],
            "mesh is data 1 x fsdp 8 x tensor 1 x expert 1 x context 1, and the devices are 4",
        ),
        (
            [*TINY, "--batch", "4", "train.stepz=9"],
            "there is no setting train.stepz: did you mean train.steps?",
        ),
        (["--config", "tinny", *TINY[2:]], "there is no file tinny: give one, or one of"),
        ([*TINY, "--mesh", "model=4", "--batch", "4"], "there is no setting mesh.model"),
        ([*TINY[:3], "v6e-5", "--batch", "4"], "unknown target 'v6e-5'"),
        ([*TINY, *MESH, "--batch", "0"], "data: batch is 0: use 1 or more"),
        ([*TINY, "--compiler-option", "a"], "'a' is not of the form NAME=VALUE"),
        (
            [*TINY, *MESH, "--batch", "4", "--attention", "cudnn"],
            "attention is cudnn, a kernel for GPUs, and these devices are TPUs",
        ),
    ],
)
def test_aot_argument_errors(
    given: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        aot.main(given)
    assert says in capsys.readouterr().err


PODS = {
    "8B, v6e-16, fsdp 16, batch 48": (
        "--config llama3.1-8b --topology v6e-16 --mesh fsdp=16 --batch 48"
    ),
    "70B, v6e-256, fsdp 256, batch 512": (
        "--config llama3.1-70b --topology v6e-256 --mesh fsdp=256 --batch 512"
    ),
    "405B, v6e-256, fsdp 64 x tensor 4, batch 256": (
        "--config llama3.1-405b --topology v6e-256 --mesh fsdp=64,tensor=4 --batch 256"
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("row", PODS)
def test_aot_pods_take_what_the_table_says(row: str, capsys: pytest.CaptureFixture[str]) -> None:
    """HBM and host memory, in GiB per chip, to 0.02. If a row shrinks, correct the table."""
    page = (ROOT / "docs" / "performance.md").read_text()
    found = re.search(rf"^\| {re.escape(row)}, offload \|(.*)\|$", page, re.M)
    assert found, f"no row {row!r} in docs/performance.md"
    *_, hbm, host = map(float, found[1].split("|"))
    assert aot.main([*PODS[row].split(), "--policy", "offload"]) == 0
    told = dict(re.findall(r"^(\w+) per chip: (.*) GiB$", capsys.readouterr().out, re.M))
    assert float(told["HBM"]) == pytest.approx(hbm, abs=0.02)
    assert float(told["host"]) == pytest.approx(host, abs=0.02)


@pytest.mark.slow
def test_aot_report_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XFUNC_CACHE_DIR", str(tmp_path))
    pairs = (
        "train.model=tiny train.plan.policy=offload train.optimizer=adafactor "
        "train.precision=bfloat16 data.seq=64 data.batch=4 mesh.fsdp=2 mesh.tensor=2"
    ).split()
    case = Case(config.read(pairs=pairs), "v6e:2x2")
    compiled = case.lower().compile("tpu:v6e:2x2")
    found = aot.sizes(case, compiled)
    shapes = model.shapes(model.TINY["tiny"])
    # Both axes divide each matrix, and norms are divided over one.
    whole = [2 * math.prod(leaf.shape) for leaf in xf.tree.leaves(shapes)]
    norms = 2 * (2 * 2 * 32 + 32)
    assert found["parameters"] == (sum(whole) - norms) / 4 + norms / 2
    assert found["batch"] == 3 * (2 * 64 * 4)  # with the documents
    host = compiled.memory_analysis().host_temp_size_in_bytes
    assert host is not None
    assert host >= 2 * (2 * 64 * 32 * 2) / 2  # the layers' inputs, a part of the features

    # The same, read: libtpu is not asked again.
    assert aot.main([*TINY, *MESH, "--batch", "4", "--policy", "offload"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"HBM per chip: {sum(found.values()) / 2**30:.2f} GiB" in lines
    assert f"host per chip: {host / 2**30:.2f} GiB" in lines
    assert "limit per chip: 31.25 GiB" in lines
    rows = [line for line in lines if re.match(r"(argument|temporary|result|host) \w+\[", line)]
    assert len(rows) == 10
    assert len(list(tmp_path.rglob("*.zip"))) == 1


@pytest.mark.slow
def test_aot_mixed_precision_all_gathers_bfloat16(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XFUNC_CACHE_DIR", str(tmp_path))
    pairs = (
        "train.model=tiny train.precision=mixed train.optimizer=adafactor data.batch=8 "
        "data.seq=64 mesh.tensor=2"
    ).split()
    case = Case(config.read(pairs=pairs), "v6e:2x2")
    text = case.lower().compile(f"tpu:{case.topology}").as_text()
    assert text is not None
    found = re.findall(r"= (\w+)\[[\d,]*\]\S* all-gather\(", text)
    assert len(found) > 10
    assert set(found) == {"bf16"}


def test_aot_indivisible_batch_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        aot.main([*TINY, *MESH, "--batch", "3"])
    assert "data.batch is 3, and 2 devices share it" in capsys.readouterr().err


def out_of_memory(*_: Any) -> None:
    raise xf.errors.OutOfMemoryError("does not fit: Used 40G of 31G hbm", 40 << 30, 31 << 30)


def test_aot_out_of_memory_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Lowered, "compile", out_of_memory)
    assert aot.main([*TINY, *MESH, "--batch", "4"]) == 1
    printed = capsys.readouterr().out
    assert "required per chip: 40.00 GiB" in printed
    assert "limit per chip: 31.00 GiB" in printed
    assert "does not fit: Used 40G of 31G hbm" in printed
    assert "HBM per chip" not in printed


def test_aot_reads_settings_of_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(
        "train: {model: tiny, precision: mixed, plan: {microbatches: 2, block: 32}}\n"
        "data: {batch: 16, seq: 64}\n"
    )
    seen: list[tuple[Any, ...]] = []

    def compile(lowered: Lowered, *_: Any) -> None:
        seen.append((*(aval.dtype for aval in lowered.traced.in_avals[-3:]),))
        out_of_memory()

    monkeypatch.setattr(Lowered, "compile", compile)
    given = ["--config", str(file), "--topology", "v6e:2x2", "--seq", "32", "train.clip=2"]
    assert aot.main(given) == 1
    assert seen == [(torch.int32,) * 3]  # tokens, targets and documents
    heading = (
        "tiny, a step with adamw in mixed, on v6e:2x2 as fsdp=4: 16 rows of 32 in 2 parts, full"
    )
    assert heading in capsys.readouterr().out


@pytest.mark.parametrize("width", [100, 1000])
def test_aot_report_long_names_keep_sizes_visible(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "xfunc__scan.block/" + "while/body/closed_call/" * 20
    large = Buffer(
        5 << 30, "temporary", "bf16[64,16384,8192]", "fusion.1", name, "/some/" * 20 + "x.py", 7
    )

    class Compiled:
        compiler = "libtpu 1"

        def memory_analysis(self) -> Any:
            return SimpleNamespace(
                argument_size_in_bytes=3 << 30,
                temp_size_in_bytes=5 << 30,
                host_temp_size_in_bytes=0,
            )

        def largest_buffers(self) -> list[Buffer]:
            return [large]

    monkeypatch.setattr(Lowered, "compile", lambda *_: Compiled())

    def console(**given: Any) -> Console:
        given["width"] = width
        return Console(**given)

    monkeypatch.setattr(aot, "Console", console)
    assert aot.main([*TINY, *MESH, "--batch", "4"]) == 0
    printed = capsys.readouterr().out
    [line] = [line for line in printed.splitlines() if "temporary bf16" in line]
    assert line.split()[2] == "5.00"
    assert "HBM per chip: 8.00 GiB" in printed
    assert "limit per chip: 31.25 GiB" in printed
