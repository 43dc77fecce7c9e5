"""What is built and installed: three folders at the top, one package in the wheel."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = {"xfunc": "xfunc", "transforms": "xfunc/transforms", "sharding": "xfunc/sharding"}
DIST_INFO = {
    f"torch_xfunc-0.1.0.dist-info/{name}"
    for name in ("METADATA", "WHEEL", "RECORD", "licenses/LICENSE")
}

TOP = {*FOLDERS, "tests", "examples", "benchmarks", "docs", "pyproject.toml", "Makefile"}
TOP |= {"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE"}
MADE = {"build", "dist", "htmlcov", "demo_output", "__pycache__"}  # see .gitignore


def test_checkout_top_level_entries() -> None:
    visible = {p.name for p in ROOT.iterdir() if not p.name.startswith(".")}
    assert {n for n in visible if not n.endswith(".egg-info")} - MADE == TOP


def python(*args: str, cwd: Path, **env: str) -> str:
    """Run Python in a child process; its output, or a failed test that shows its errors."""
    done = subprocess.run(
        [sys.executable, *args], cwd=cwd, env=os.environ | env, capture_output=True, text=True
    )
    if done.returncode:
        pytest.fail(f"python {' '.join(args)}\n{done.stdout}{done.stderr}", pytrace=False)
    return done.stdout


def names(archive: Path) -> set[str]:
    """The files in a wheel."""
    with zipfile.ZipFile(archive) as wheel:
        return {name for name in wheel.namelist() if not name.endswith("/")}


def sources() -> dict[str, Path]:
    """Every file of the package in this checkout, by its name in a wheel."""
    found = {}
    for folder, installed in FOLDERS.items():
        for directory, _, files in os.walk(ROOT / folder, followlinks=False):
            if Path(directory).name == "__pycache__":
                continue
            for file in files:
                path = Path(directory, file)
                found[f"{installed}/{path.relative_to(ROOT / folder).as_posix()}"] = path
    return found


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """A copy of the source tree, links kept as links."""
    copy = tmp_path_factory.mktemp("checkout")
    ignore = shutil.ignore_patterns("__pycache__")
    for folder in (*FOLDERS, "tests", "examples", "benchmarks", "docs"):
        shutil.copytree(ROOT / folder, copy / folder, symlinks=True, ignore=ignore)
    for file in ("pyproject.toml", "README.md", "LICENSE", "Makefile", ".gitignore"):
        shutil.copy(ROOT / file, copy / file)
    return copy


@pytest.fixture(scope="module")
def wheel(checkout, tmp_path_factory) -> Path:
    """The wheel that is built from the sdist that is built from the checkout."""
    out = tmp_path_factory.mktemp("dist")
    python("-m", "hatchling", "build", "-t", "sdist", "-d", str(out), cwd=checkout)
    with tarfile.open(out / "torch_xfunc-0.1.0.tar.gz") as sdist:
        sdist.extractall(out, filter="data")
    python("-m", "hatchling", "build", "-t", "wheel", "-d", str(out), cwd=out / "torch_xfunc-0.1.0")
    return out / "torch_xfunc-0.1.0-py3-none-any.whl"


def test_checkout_links_are_relative():
    for folder in ("transforms", "sharding"):
        link = ROOT / "xfunc" / folder
        assert link.is_symlink()
        assert os.readlink(link) == f"../{folder}"


def test_wheel_from_sdist_holds_only_the_package(wheel):
    assert {
        "xfunc/__init__.py",
        "xfunc/py.typed",
        "xfunc/transforms/__init__.py",
        "xfunc/sharding/__init__.py",
    } <= names(wheel)
    assert names(wheel) == set(sources()) | DIST_INFO


def test_wheel_holds_real_files(wheel):
    with zipfile.ZipFile(wheel) as archive:
        for name, path in sources().items():
            assert archive.read(name) == path.read_bytes(), name


def test_wheel_from_checkout_is_the_same(wheel, checkout, tmp_path):
    python("-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path), cwd=checkout)
    assert names(tmp_path / wheel.name) == names(wheel)


def test_wheel_imports(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    code = (
        "import xfunc as x, xfunc.transforms as t, xfunc.sharding as s; print(x, t, s, sep='\\n')"
    )
    found = python("-c", code, cwd=tmp_path, PYTHONPATH=str(tmp_path / "site"))
    for folder in FOLDERS.values():
        assert f"from '{tmp_path}/site/{folder}/__init__.py'" in found


def test_editable_install_copies_no_source(checkout, tmp_path):
    """It points at the checkout; a copy of a folder would go stale in silence."""
    code = "import sys, hatchling.build as b; b.build_editable(sys.argv[1])"
    python("-c", code, str(tmp_path), cwd=checkout)
    (built,) = tmp_path.glob("*.whl")
    assert names(built) == {"_torch_xfunc.pth"} | DIST_INFO
    with zipfile.ZipFile(built) as archive:
        assert archive.read("_torch_xfunc.pth").decode().split() == [str(checkout)]


def test_generated_protobuf_suits_oldest_version():
    """Nor does it check the runtime's version: newer generators refuse a runtime two majors on."""
    code = (ROOT / "xfunc/hlo/hlo_pb2.py").read_text()
    requirements = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (version,) = re.findall(r"^# Protobuf Python Version: (\S+)$", code, re.MULTILINE)
    assert f"protobuf>={version}" in requirements
    assert "ValidateProtobufRuntimeVersion" not in code


def test_no_page_installs_a_package_of_somebody_else():
    """On the package index the name xfunc is not ours."""
    asks = re.compile(r"pip install [^\n]*(?<![\w/-])xfunc(?![\w/.])")
    files = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    files += [path for path in sources().values() if path.suffix == ".py"]
    files += (ROOT / "examples").rglob("*.py")
    found = [str(path) for path in files if asks.search(path.read_text(encoding="utf-8"))]
    assert found == []
