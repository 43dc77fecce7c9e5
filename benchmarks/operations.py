"""Operations: torch's own examples of each of its functions, under jit and grad, against eager.

torch tests itself with a database of its operations, each with a generator of sample arguments
(``torch.testing._internal.common_methods_invocations.op_db``). Every entry's float32 samples run

- forward under `xf.jit`, compared with eager torch on the CPU;
- where the entry supports autograd, the gradient of a weighted sum of the results, likewise.

Each sample is right, refused (an error of xfunc that names the operation), wrong (other values, and
no error), or fails with another error. The samples run in a process of their own, which is started
again behind an operation that kills it.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import queue
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import xfunc as xf

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "operations.md"
BEGIN, END = "<!-- operations: begin -->", "<!-- operations: end -->"
SECONDS = 240.0  # without a result, before an operation counts as hung

# The worst of an operation's samples is its status: in this order.
# Absent: torch itself cannot run the samples on arrays of the CPU.
STATUSES = ("crash", "wrong", "error", "refused", "right", "absent")
REFUSALS = (xf.errors.UnsupportedOpError, xf.errors.PurityError, xf.errors.ConcretizationError)

# What these return is not determined: the shape and the dtype are compared.
UNDETERMINED = frozenset(
    "empty new_empty empty_like empty_strided empty_permuted new_empty_strided".split()
)


def _product(*factors: torch.Tensor) -> torch.Tensor:
    out = factors[0]
    for f in factors[1:]:
        out = out @ f
    return out


# Vectors of a decomposition are determined up to a factor: what they multiply to is compared.
INVARIANTS: dict[str, Callable[[Any], Any]] = {
    "linalg.eigh": lambda r: (r[0], _product(r[1] * r[0].unsqueeze(-2), r[1].mH)),
    "linalg.svd": lambda r: (r[1], *_usv(r[0], r[1], r[2])),
    "svd": lambda r: (r[1], *_usv(r[0], r[1], r[2].mH)),
    "svd_lowrank": lambda r: (r[1], *_usv(r[0], r[1], r[2].mH)),
    "pca_lowrank": lambda r: (r[1], *_usv(r[0], r[1], r[2].mH)),
    "linalg.qr": lambda r: (r[0].abs(), r[1].abs(), *([_product(*r)] if r[0].numel() else [])),
    "qr": lambda r: (r[0].abs(), r[1].abs(), _product(*r)),
    "geqrf": lambda r: r[0].triu().abs(),
}


def _usv(u: torch.Tensor, s: torch.Tensor, vh: torch.Tensor) -> tuple[torch.Tensor, ...]:
    if not u.numel() or not vh.numel():
        return ()
    k = s.shape[-1]
    return (_product(u[..., :k] * s.unsqueeze(-2), vh[..., :k, :]), u.mH @ u, vh @ vh.mH)


@dataclasses.dataclass
class Finding:
    """What became of an operation.

    Attributes:
        name: of the operation, with its variant.
        status: see `STATUSES`.
        samples: how many ran.
        right: how many were right.
        detail: of the worst sample: the error, or the difference.
    """

    name: str
    status: str
    samples: int = 0
    right: int = 0
    detail: str = ""


def entries() -> dict[str, Any]:
    """torch's database by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    return {full_name(op): op for op in op_db}


def full_name(op: Any) -> str:
    """``name.variant``."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def spread(items: Sequence[Any], n: int) -> list[Any]:
    """At most `n` items, evenly from the first to the last."""
    if len(items) <= n:
        return list(items)
    return [items[round(k * (len(items) - 1) / max(n - 1, 1))] for k in range(n)]


def dtype_of(op: Any) -> torch.dtype:
    """float32, or what the operation takes instead."""
    others = (torch.float32, torch.int64, torch.bool, torch.complex64)
    return next((d for d in others if d in op.dtypes), torch.float32)


def samples_of(op: Any, n: int, grad: bool) -> list[Any]:
    """Some of an entry's samples."""
    torch.manual_seed(0)
    return spread(list(op.sample_inputs("cpu", dtype_of(op), requires_grad=grad)), n)


class Call:
    """One sample as a function of its tensors."""

    def __init__(self, op: Any, sample: Any):
        self._op, self._process = op, sample.output_process_fn_grad
        kwargs = {k: v for k, v in sample.kwargs.items() if k != "device"}
        leaves, self._tree = xf.tree.flatten((sample.input, tuple(sample.args), kwargs))
        self._leaves = leaves
        self._places = [i for i, a in enumerate(leaves) if isinstance(a, torch.Tensor)]
        # An array has no strides: the samples that are views become arrays of their own.
        self.tensors = [leaves[i].detach().contiguous().clone() for i in self._places]
        self.watched = tuple(
            k
            for k, i in enumerate(self._places)
            if leaves[i].requires_grad and leaves[i].dtype.is_floating_point
        )

    def __call__(self, *tensors: torch.Tensor) -> Any:
        leaves = list(self._leaves)
        for i, t in zip(self._places, tensors, strict=True):
            leaves[i] = t
        first, args, kwargs = xf.tree.unflatten(self._tree, leaves)
        out = self._op.op(first, *args, **kwargs)
        return tuple(out) if isinstance(out, torch.Size) else out

    def loss(self, *tensors: torch.Tensor) -> torch.Tensor:
        """A weighted sum of all results that can be differentiated."""
        total = torch.zeros((), dtype=torch.float32)
        for out in arrays(self._process(self(*tensors))):
            if out.is_complex():
                out = torch.view_as_real(out)
            if out.is_floating_point():
                weights = torch.cos(torch.arange(out.numel(), dtype=out.dtype))
                total = total + (out.reshape(-1) * weights).sum()
        return total


def arrays(tree: Any) -> list[torch.Tensor]:
    """The tensors of a result."""
    return [a for a in xf.tree.leaves(tree) if isinstance(a, torch.Tensor)]


def compare(name: str, found: Any, expected: Any) -> str | None:
    """How two results differ, or None."""
    base = name.split(".")[0]
    if name in INVARIANTS:
        found, expected = INVARIANTS[name](found), INVARIANTS[name](expected)
    ours, theirs = xf.tree.leaves(found), xf.tree.leaves(expected)
    if len(ours) != len(theirs):
        return f"{len(ours)} results, not {len(theirs)}"
    for a, b in zip(ours, theirs, strict=True):
        if not isinstance(b, torch.Tensor):
            if a != b:
                return f"{a!r}, not {b!r}"
            continue
        b = b.detach().resolve_conj().resolve_neg()
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"{a.dtype}{[*a.shape]}, not {b.dtype}{[*b.shape]}"
        if base in UNDETERMINED:
            continue
        finite = b[b.isfinite()].to(torch.complex128).abs()
        atol = max(1e-4, 2e-6 * finite.max().item()) if finite.numel() else 1e-4
        try:
            torch.testing.assert_close(
                a, b, rtol=1e-3, atol=atol, equal_nan=True, check_stride=False
            )
        except AssertionError as error:
            return " ".join(str(error).split())[:300]
    return None


def examine(op: Any, forward: int = 4, backward: int = 2) -> Finding:
    """Run an entry's samples; see the module."""
    found = Finding(full_name(op), "absent", detail="torch cannot run it on arrays of the CPU")
    for status, detail in _outcomes(op, forward, backward):
        found.samples += status != "absent"
        found.right += status == "right"
        if STATUSES.index(status) < STATUSES.index(found.status):
            found.status, found.detail = status, detail
    return found


def _outcomes(op: Any, forward: int, backward: int) -> Iterator[tuple[str, str]]:
    name = full_name(op)
    for sample in samples_of(op, forward, False):
        torch.manual_seed(0)
        try:
            call = Call(op, sample)
            expected = call(*[t.clone() for t in call.tensors])
        except Exception as error:
            yield "absent", f"{type(error).__name__}: {error}"
            continue
        yield _outcome(name, call, lambda c=call: xf.jit(c), expected)
    if not op.supports_autograd or not dtype_of(op).is_floating_point:
        return
    for sample in samples_of(op, backward, True):
        torch.manual_seed(0)
        try:
            call = Call(op, sample)
            if not call.watched:
                continue
            inputs = [t.requires_grad_(k in call.watched) for k, t in enumerate(call.tensors)]
            loss = call.loss(*inputs)
            expected = torch.autograd.grad(
                loss, [inputs[k] for k in call.watched], allow_unused=True, materialize_grads=True
            )
        except Exception:  # No derivative in torch either.
            continue
        call.tensors = [t.detach() for t in inputs]
        yield _outcome(
            "", call, lambda c=call: xf.grad(c.loss, argnums=c.watched), expected, "grad: "
        )


def _outcome(
    name: str, call: Call, transformed: Callable[[], Any], expected: Any, what: str = ""
) -> tuple[str, str]:
    try:
        found: Any = xf.device_get(transformed()(*call.tensors))
    except REFUSALS as error:
        return "refused", f"{what}{type(error).__name__}: {error}"
    except Exception as error:
        return "error", f"{what}{type(error).__name__}: {str(error)[:1500]}"
    problem = compare(name, found, expected)
    return ("right", "") if problem is None else ("wrong", what + problem)


def work(forward: int, backward: int) -> None:
    """The process that runs samples: names on its input, findings on its output."""
    warnings.simplefilter("ignore")
    output = sys.stdout
    sys.stdout = sys.stderr
    database = entries()
    for k, line in enumerate(sys.stdin):
        try:
            found = examine(database[line.strip()], forward, backward)
        except Exception as error:
            found = Finding(line.strip(), "error", detail=f"{type(error).__name__}: {error}")
        print(json.dumps(dataclasses.asdict(found)), file=output, flush=True)
        if k % 20 == 19:
            xf.clear_caches()


class _Worker:
    """A process that runs `work`."""

    def __init__(self, forward: int, backward: int):
        command = [sys.executable, "-m", "benchmarks.operations", str(forward), str(backward)]
        self._process = subprocess.Popen(
            command, stdin=-1, stdout=-1, stderr=subprocess.DEVNULL, text=True, cwd=ROOT
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def examine(self, name: str) -> Finding:
        """Have an operation examined; a process that dies over it is a crash."""
        assert self._process.stdin is not None
        self._process.stdin.write(name + "\n")
        self._process.stdin.flush()
        try:
            line = self._lines.get(timeout=SECONDS)
        except queue.Empty:
            self.close()
            return Finding(name, "crash", detail=f"no result after {SECONDS:g} s")
        if line:
            return Finding(**json.loads(line))
        return Finding(name, "crash", detail=f"exit status {self._process.wait()}")

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def measure(
    names: Iterable[str], forward: int = 4, backward: int = 2, record: Path | None = None
) -> list[Finding]:
    """Examine operations by name, in a process that may die over them."""
    found: list[Finding] = []
    worker: _Worker | None = None
    for name in names:
        worker = worker or _Worker(forward, backward)
        found.append(worker.examine(name))
        if record is not None:
            with record.open("a") as file:
                file.write(json.dumps(dataclasses.asdict(found[-1])) + "\n")
        if found[-1].status == "crash":
            worker.close()
            worker = None
    if worker is not None:
        worker.close()
    return found


def table(found: Sequence[Finding]) -> str:
    """The findings in Markdown."""
    counts = collections.Counter(f.status for f in found)
    words = {
        "right": "right",
        "refused": "refused",
        "error": "another error",
        "wrong": "wrong",
        "crash": "ends the process",
        "absent": "torch itself cannot run it on arrays of the CPU",
    }
    lines = ["| | operations |", "|---|---|"]
    lines += [f"| {w} | {counts[s]} |" for s, w in words.items()]
    lines.append(f"| all | {len(found)} |")
    for status, word in words.items():
        names = ", ".join(f"`{f.name}`" for f in found if f.status == status)
        if names:
            lines += ["", f"**{word[0].upper()}{word[1:]}**: {names}."]
    return "\n".join(lines)


def write(found: Sequence[Finding]) -> None:
    """Put the table into the page."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    PAGE.write_text(f"{before}{BEGIN}\n{table(found)}\n{END}{after}", encoding="utf-8")


def main() -> None:
    """Measure all operations and write the page; takes a few minutes."""
    found = measure(entries())
    write(found)
    print(collections.Counter(f.status for f in found))


if __name__ == "__main__":
    work(*map(int, sys.argv[1:]))
