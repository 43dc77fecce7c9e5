"""What a trace depends on differs in the next process: it does not find the program.

Each case is Python source: what is defined (with a function ``f`` of one tensor), what differs in
the second process, and what takes that back. `why` is how `explain()` begins to say that the
program is not kept; "" if it is kept, and not found in the second process.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from tests.support.fresh import Server


@dataclasses.dataclass(frozen=True)
class Case:
    """Source of a module, of a difference, of what takes that back; and why it is not kept."""

    define: str
    differ: str
    back: str
    why: str


PREAMBLE = """
import builtins, contextlib, dataclasses, decimal, functools, gc, inspect, linecache, logging, mmap
import operator, os, pathlib, pickle, sqlite3, string, struct, sys, types
from operator import attrgetter as attribute_of
from os import getenv as variable_of
from safetensors import safe_open as opened
import numpy as np
import safetensors.numpy, safetensors.torch
import torch
import influenced_settings as settings
import xfunc as xf

get, names_of, run, look = getattr, dir, eval, vars
at = FOLDER + "/at"
text = "{0.rate}".format
number = 2.0
def written(k): pathlib.Path(at).write_bytes(struct.pack("f", k) * 2)
def helper(x, k=2.0, *, m=2.0):
    return x * k * m
class Plain:
    rate: float = 2.0
log = logging.getLogger("influenced")
"""


def _case(body: str, differ: str, back: str = "", why: str = "", define: str = "") -> Case:
    return Case(f"{PREAMBLE}{define}\ndef f(x):\n    {body}\n", differ, back, why)


def _read(factor: str, why: str) -> Case:
    """A function that reads a file."""
    return _case(f"return x * {factor}", "written(3.0)", why=why, define="written(2.0)")


def _settings(factor: str, why: str) -> Case:
    """A function that reads a module of the program in some spelling."""
    back = "settings.rate = 2.0; vars(settings).pop('extra', 0)"
    return _case(f"return x * {factor}", "settings.rate = 3.0; settings.extra = 0", back, why)


def _variable(factor: str) -> Case:
    """A function that reads an environment variable in some spelling."""
    change, back = "os.environ['INFLUENCE'] = '3'", "os.environ['INFLUENCE'] = '2'"
    return _case(f"return x * {factor}", change, back)


def _flag(condition: str, change: str, back: str, why: str) -> Case:
    """A function that reads a setting."""
    return _case(f"return x * (2.0 if {condition} else 3.0)", change, back, why)


_SAVED = "def saved(k): safetensors.torch.save_file({'a': torch.tensor([k])}, at)"
_MODULE = "it uses the module settings as a value"
_BACKENDS = "torch.backends.__get__ was called"

_MARKERS = "class Mark: pass\non, off = Mark(), Mark()\nmode = on"
_LISTS = "on, off = [1], [1]\nmode = on"
_CHOSEN = "(2.0 if mode is on else 3.0)"

CASES: dict[str, Case] = {
    # -- files read by compiled code
    "safetensors": _case(
        "return x * safetensors.torch.load_file(at)['a']",
        "saved(3.0)",
        why="safe_open.get_tensors was called",
        define=f"{_SAVED}\nsaved(2.0)",
    ),
    "safetensors opened": _case(
        "with opened(at, 'pt') as o:\n        return x * o.get_tensor('a')",
        "saved(3.0)",
        why="it depends on the class safe_open",
        define=f"{_SAVED}\nsaved(2.0)",
    ),
    "torch.from_file": _read("torch.from_file(at, size=1)", "_VariableFunctionsClass.from_file"),
    "np.fromfile": _read("float(np.fromfile(at, np.float32)[0])", "fromfile was called"),
    "np.memmap": _read("float(np.memmap(at, np.float32, 'r')[0])", "open was called"),
    "torch.load": _case(
        "return x * torch.load(at, mmap=True)",
        "torch.save(torch.tensor(3.0), at)",
        why="open was called",
        define="torch.save(torch.tensor(2.0), at)",
    ),
    "torch.jit.load": _case(
        "return x * torch.jit.load(at).rate",
        "saved(3.0)",
        why="stat was called",
        define="class M(torch.nn.Module):\n"
        " def __init__(self, k): super().__init__(); self.rate = k\n"
        "def saved(k): torch.jit.save(torch.jit.script(M(k)), at)\nsaved(2.0)",
    ),
    "a map of memory": _case(
        "return x * struct.unpack('f', mapped[:4])[0]",
        "mapped[:4] = struct.pack('f', 3.0)",
        why="it depends on a mmap.mmap",
        define="mapped = mmap.mmap(-1, 4); mapped[:4] = struct.pack('f', 2.0)",
    ),
    "the size of a file": _case(
        "return x * os.path.getsize(at)",
        "pathlib.Path(at).write_text('abc')",
        why="stat was called",
        define="pathlib.Path(at).write_text('ab')",
    ),
    "a line of a file": _case(
        "return x * float(linecache.getline(at, 1))",
        "pathlib.Path(at).write_text('3.0'); linecache.clearcache()",
        why="linecache.getline was called",
        define="pathlib.Path(at).write_text('2.0'); linecache.clearcache()",
    ),
    "a database": _case(
        "return x * sqlite3.connect(at + 'db').execute('select a from t').fetchone()[0]",
        "saved(3.0)",
        why="connect was called",
        define="def saved(k):\n    with contextlib.closing(sqlite3.connect(at + 'db')) as c:\n"
        "        c.executescript(f'drop table if exists t; create table t (a);'\n"
        "                        f'insert into t values ({k})')\nsaved(2.0)",
    ),
    # -- access that is spelled around
    "getattr": _settings("builtins.getattr(settings, 'ra' + 'te')", "it uses getattr"),
    "getattr by another name": _settings("get(settings, 'ra' + 'te')", "it depends on getattr"),
    "getattr that is mapped": _settings(
        "next(map(get, [settings], ['ra' + 'te']))", "it depends on getattr under another name"
    ),
    "attrgetter": _settings("operator.attrgetter('ra' + 'te')(settings)", "it uses attrgetter"),
    "attrgetter by another name": _settings(
        "attribute_of('ra' + 'te')(settings)", "it depends on attrgetter under another name"
    ),
    "methodcaller": _settings(
        "operator.methodcaller('__getattribute__', 'ra' + 'te')(settings)", "it uses methodcaller"
    ),
    "a format": _settings("float('{0.rate}'.format(settings))", _MODULE),
    "a format by another name": _settings("float(text(settings))", _MODULE),
    "a map of formats": _settings("float('{s.rate}'.format_map({'s': settings}))", _MODULE),
    "a formatter": _settings("float(string.Formatter().format('{0.rate}', settings))", _MODULE),
    "vars": _settings("vars(settings)['ra' + 'te']", "it uses vars"),
    "vars by another name": _settings("look(settings)['ra' + 'te']", "it depends on vars"),
    "__dict__": _settings("settings.__dict__['ra' + 'te']", "it uses __dict__"),
    "dir": _settings("(2 + ('extra' in dir(settings)))", "it uses dir"),
    "dir by another name": _settings("(2 + ('extra' in names_of(settings)))", "it depends on dir"),
    "inspect": _settings("dict(inspect.getmembers(settings))['rate']", "inspect.getmembers was"),
    "sys.modules": _settings(
        "sys.modules['influenced_settings'].rate", "it depends on what the interpreter holds in sys"
    ),
    "pickle": _settings("pickle.loads(b'cinfluenced_settings\\nrate\\n.')", "loads was called"),
    "globals": _case("return x * globals()['num' + 'ber']", "number = 3.0", why="it uses globals"),
    "globals of another": _case(
        "return x * helper.__globals__['num' + 'ber']", "number = 3.0", why="it uses __globals__"
    ),
    "eval": _case("return x * eval('num' + 'ber')", "number = 3.0", why="<module> ran, which no"),
    "eval by another name": _case(
        "return x * run('num' + 'ber')", "number = 3.0", why="it depends on eval under another name"
    ),
    "a pattern": _case(
        "match held[0]:\n        case types.ModuleType(rate=k): return x * k",
        "settings.rate = 3.0",
        "settings.rate = 2.0",
        define="held = [settings]",
    ),
    # -- settings
    "torch.backends": _flag(
        "torch.backends.cudnn.enabled",
        "torch.backends.cudnn.enabled = False",
        "torch.backends.cudnn.enabled = True",
        _BACKENDS,
    ),
    "torch.backends.mkldnn": _flag(
        "torch.backends.mkldnn.enabled",
        "torch._C._set_mkldnn_enabled(False)",
        "torch._C._set_mkldnn_enabled(True)",
        _BACKENDS,
    ),
    "attention kernels": _flag(
        "torch.backends.cuda.flash_sdp_enabled()",
        "torch.backends.cuda.enable_flash_sdp(False)",
        "torch.backends.cuda.enable_flash_sdp(True)",
        "torch.backends.cuda.flash_sdp_enabled was called",
    ),
    "what is not initialised": _flag(
        "torch.utils.deterministic.fill_uninitialized_memory",
        "torch.utils.deterministic.fill_uninitialized_memory = False",
        "torch.utils.deterministic.fill_uninitialized_memory = True",
        "torch.utils.deterministic.fill_uninitialized_memory was called",
    ),
    "warnings of torch": _flag(
        "torch.is_warn_always_enabled()",
        "torch.set_warn_always(True)",
        "torch.set_warn_always(False)",
        "torch.is_warn_always_enabled was called",
    ),
    "the dtype of autocast": _flag(
        "torch.get_autocast_dtype('cpu') is torch.bfloat16",
        "torch.set_autocast_dtype('cpu', torch.float16)",
        "torch.set_autocast_dtype('cpu', torch.bfloat16)",
        "",
    ),
    "the default dtype": _flag(
        "torch.get_default_dtype() is torch.float32",
        "torch.set_default_dtype(torch.float64)",
        "torch.set_default_dtype(torch.float32)",
        "",
    ),
    "decimals": _case(
        "return x * float(decimal.Decimal(2) / 3)",
        "decimal.getcontext().prec = 3",
        "decimal.getcontext().prec = 28",
        "it depends on the compiled class decimal.Decimal",
    ),
    "the precision of decimals": _case(
        "return x * decimal.getcontext().prec",
        "decimal.getcontext().prec = 3",
        "decimal.getcontext().prec = 28",
        "getcontext was called",
    ),
    "printed arrays": _case(
        "return x * len(str(np.ones(1) / 3))",
        "np.set_printoptions(precision=3)",
        "np.set_printoptions(precision=8)",
        "numpy._core.arrayprint",
    ),
    "the level of a log": _case("return x * log.level", "log.setLevel(10)", "log.setLevel(0)"),
    "a log that is asked": _flag("log.isEnabledFor(20)", "log.setLevel(10)", "log.setLevel(0)", ""),
    "the working directory": _case(
        "return x * len(os.path.abspath('a'))", "os.chdir('/')", "os.chdir(FOLDER)", "getcwd was"
    ),
    "the collector": _flag("gc.isenabled()", "gc.disable()", "gc.enable()", "isenabled was"),
    # -- environment variables
    "os.environ": _variable("float(os.environ['INFLUENCE'])"),
    "get": _variable("float(os.environ.get('INFLUENCE', 1))"),
    "getenv": _variable("float(os.getenv('INFLUENCE'))"),
    "getenv by another name": _variable("float(variable_of('INFLUENCE'))"),
    "environb": _variable("float(os.environb[b'INFLUENCE'])"),
    "expandvars": _variable("float(os.path.expandvars('$INFLUENCE'))"),
    "all variables": _case(
        "return x * sum(n.startswith('INFLUENCE') for n in os.environ)",
        "os.environ['INFLUENCES'] = ''",
        "del os.environ['INFLUENCES']",
        "it reads all environment variables",
    ),
    # -- attributes of functions and classes
    "__doc__": _case("return x * len(helper.__doc__ or '')", "helper.__doc__ = 'text'"),
    "__name__": _case("return x * len(helper.__name__)", "helper.__name__ = 'other'"),
    "__qualname__": _case("return x * len(helper.__qualname__)", "helper.__qualname__ = 'other'"),
    "__module__": _case("return x * len(helper.__module__)", "helper.__module__ = 'other'"),
    "__defaults__": _case("return x * helper.__defaults__[0]", "helper.__defaults__ = (3.0,)"),
    "__kwdefaults__": _case(
        "return x * helper.__kwdefaults__['m']", "helper.__kwdefaults__ = {'m': 3.0}"
    ),
    "__annotations__": _case(
        "return x * len(helper.__annotations__)",
        "helper.__annotations__ = {'x': int}",
        why="it uses __annotations__",
    ),
    "__wrapped__": _case(
        "return x * helper.__wrapped__",
        "helper.__wrapped__ = 3.0",
        define="helper.__wrapped__ = 2.0",
    ),
    "a signature": _case(
        "return x * inspect.signature(helper).parameters['k'].default",
        "helper.__defaults__ = (3.0,)",
        why="inspect.signature was called",
    ),
    "__doc__ of a class": _case("return x * len(Plain.__doc__ or '')", "Plain.__doc__ = 'text'"),
    "__name__ of a class": _case("return x * len(Plain.__name__)", "Plain.__name__ = 'Longer'"),
    "__subclasses__": _case(
        "return x * len(Plain.__subclasses__())",
        "class Other(Plain): pass",
        why="it uses __subclasses__",
    ),
    "the metadata of a field": _case(
        "return x * dataclasses.fields(Data)[0].metadata['rate']",
        "made(3.0)",
        define="def made(k):\n    global Data\n    @dataclasses.dataclass\n    class Data:\n"
        "        a: int = dataclasses.field(default=0, metadata={'rate': k})\n"
        "    Data.__qualname__ = 'Data'\nmade(2.0)",
    ),
    # -- which object it is
    "a marker": _case(f"return x * {_CHOSEN}", "mode = off", define=_MARKERS),
    "a marker in a closure": _case(
        "return g(x)",
        "g = made(off)",
        define=f"{_MARKERS}\ndef made(mode): return lambda x: x * {_CHOSEN}\ng = made(on)",
    ),
    "a marker as a static argument": _case(
        "return xf.jit(g, static_argnums=1)(x, mode)",
        "mode = off",
        define=f"{_MARKERS}\ndef g(x, mode): return x * {_CHOSEN}",
    ),
    "one of two equal lists": _case(f"return x * {_CHOSEN}", "mode = off", define=_LISTS),
    # -- what objects of Python's own classes and classes of libraries hold
    "an attribute of an enum": _case(
        "return x * E.a.rate",
        "E.a.rate = 3.0",
        define="import enum\nE = enum.Enum('E', 'a')\nE.a.rate = 2.0",
    ),
    "the class of a partial": _case(
        "return p(x) * p.rate",
        "P.rate = 3.0",
        define="class P(functools.partial): rate = 2.0\np = P(torch.sin)",
    ),
    "a factory of a dict": _case(
        "return x * (2.0 if d.default_factory is int else 3.0)",
        "d.default_factory = list",
        define="import collections\nd = collections.defaultdict(int)",
    ),
    "a default of a context variable": _case(
        "return x * v.get()",
        "made(3.0)",
        define="import contextvars\ndef made(k):\n"
        "    global v; v = contextvars.ContextVar('v', default=k)\nmade(2.0)",
    ),
    "the class in an alias": _case(
        "return x * A.__args__[0].rate",
        "U.rate = 3.0",
        define="class U: rate = 2.0\nA = list[U]",
    ),
    "names of an array's fields": _case(
        "return x * float(r['a'][0])",
        "made('b', 'a')",
        define="def made(*names):\n    global r\n"
        "    r = np.array([(2.0, 3.0)], [(n, 'f4') for n in names])\nmade('a', 'b')",
    ),
    "a class of a library": _case(
        "return x * relu.rate",
        "torch.nn.ReLU.rate = 3.0",
        "del torch.nn.ReLU.rate",
        define="relu = torch.nn.ReLU()\ntorch.nn.ReLU.rate = 2.0",
    ),
    "defaults of a function of a library": _case(
        "return x * torch.nn.functional.hardtanh(x * 9)",
        "torch.nn.functional.hardtanh.__defaults__ = (-1.0, 3.0, False)",
        "torch.nn.functional.hardtanh.__defaults__ = (-1.0, 1.0, False)",
    ),
    "repr of a field": _case(
        "return x * (2.0 if dataclasses.fields(Told)[0].repr else 3.0)",
        "made(False)",
        define="def made(k):\n    global Told\n    @dataclasses.dataclass\n    class Told:\n"
        "        a: int = dataclasses.field(default=0, repr=k)\n"
        "    Told.__qualname__ = 'Told'\nmade(True)",
    ),
    "a class registered with another": _case(
        "return x * (3.0 if isinstance(plain, Norm) else 2.0)",
        "Norm.register(Plain)",
        define="import abc\nclass Norm(abc.ABC): pass\nplain = Plain()",
    ),
    "a thread": _case(
        "found = []\n    t = threading.Thread(target=lambda: found.append(settings.rate))\n"
        "    t.start(); t.join()\n    return x * found[0]",
        "settings.rate = 3.0",
        "settings.rate = 2.0",
        why="start_",
        define="import threading",
    ),
    # -- imports inside of functions
    "sys": _case(
        "import sys\n    return x * (2.0 if sys.argv[-1] else 3.0)",
        "sys.argv.append('')",
        "sys.argv.pop()",
        why="it depends on what the interpreter holds in sys",
    ),
    "an attribute of a library": _case(
        "import numpy as n\n    return x * n.rate",
        "np.rate = 3.0",
        "del np.rate",
        define="np.rate = 2.0",
    ),
    "a module named like a library's": _case(
        "from .types import rate\n    return x * rate",
        "sys.modules[name].rate = 3.0",
        why="it imports a module of the program",
        define="__package__ = 'influenced'\nname = 'influenced.types'\n"
        "sys.modules[name] = types.ModuleType(name)\n"
        "sys.modules['influenced'] = types.ModuleType('influenced')\n"
        "sys.modules[name].__dict__.update(rate=2.0, __file__=FOLDER + '/types.py')",
    ),
}


SAME = Case(f"{PREAMBLE}\ndef f(x):\n    return helper(x) * settings.rate\n", "", "", "")
SCRIPT = """if True:
    import collections, json, os, pathlib, sys, types
    import torch, xfunc as xf

    Case = collections.namedtuple("Case", "define differ back why")

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


@pytest.mark.sample(9, seed=0)
@pytest.mark.parametrize("name", CASES)
def test_trace_cache_misses_changed_influence(runs: list[dict[str, Any]], name: str) -> None:
    for run in runs:
        wanted, got, traces, why = run[name]
        assert got == pytest.approx(wanted, rel=1e-3)
        assert traces == 1
        assert why.startswith(CASES[name].why) if CASES[name].why else not why
    assert runs[0][name][0] != runs[1][name][0], "the difference makes no difference"


def test_trace_cache_hit_without_changed_influence(runs: list[dict[str, Any]]) -> None:
    assert [run["same"][2] for run in runs] == [1, 0]
