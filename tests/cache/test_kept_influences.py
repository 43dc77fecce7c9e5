"""What a trace depends on differs in the next process: it does not find the program."""

import json
from typing import Any

import pytest

from tests.support.fresh import Server
from tests.support.influences import CASES, PREAMBLE, Case

SAME = Case(f"{PREAMBLE}\ndef f(x):\n    return helper(x) * settings.rate\n", "", "", "")
SCRIPT = """if True:
    import dataclasses, json, os, pathlib, sys, types
    import torch, xfunc as xf
    from tests.support.influences import Case

    folder, second = sys.argv[1], sys.argv[2] == "2"
    os.chdir(folder)
    os.environ["INFLUENCE"] = "2"
    settings = types.ModuleType("influenced_settings")
    settings.__dict__.update(rate=2.0, __file__=folder + "/influenced_settings.py")
    sys.modules[settings.__name__] = settings
    cases = {n: Case(*c) for n, c in json.loads(pathlib.Path("cases").read_text()).items()}
    x, found = torch.tensor([1.0, 2.0]), {}
    for k, (name, case) in enumerate(cases.items()):
        module = sys.modules[f"case{k}"] = types.ModuleType(f"case{k}")
        module.__dict__.update(FOLDER=folder, __file__=f"{folder}/case{k}.py")
        pathlib.Path(module.__file__).write_text(case.define)
        exec(compile(case.define, module.__file__, "exec"), vars(module))
        exec(case.differ if second else "", vars(module))
        with xf.disable_jit():
            wanted = module.f(x)
        xf.config.set_trace_cache_dir("traces")
        jitted = xf.jit(module.f)
        got = jitted(x)
        xf.config.set_trace_cache_dir(None)
        why = jitted.explain().partition("not kept on disk: ")[2]
        found[name] = wanted.tolist(), got.tolist(), xf.trace_count(jitted), why
        exec(case.back if second else "", vars(module))
    print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def runs(fresh: Server, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What two processes found, one after the other."""
    folder = tmp_path_factory.mktemp("influences")
    cases = {n: list(vars(c).values()) for n, c in {**CASES, "same": SAME}.items()}
    (folder / "cases").write_text(json.dumps(cases))
    found = []
    for k in (1, 2):
        done = fresh.run(f"import warnings; warnings.simplefilter('ignore')\n{SCRIPT}", folder, k)
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout.splitlines()[-1]))
    return found


@pytest.mark.parametrize("name", CASES)
def test_a_difference_is_seen(runs: list[dict[str, Any]], name: str) -> None:
    for run in runs:
        wanted, got, traces, why = run[name]
        assert got == pytest.approx(wanted, rel=1e-3)
        assert traces == 1
        assert why.startswith(CASES[name].why) if CASES[name].why else not why
    assert runs[0][name][0] != runs[1][name][0], "the difference makes no difference"


def test_without_a_difference_the_program_is_found(runs: list[dict[str, Any]]) -> None:
    assert [run["same"][2] for run in runs] == [1, 0]
