"""A cached program, and how to call it with real tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from xfunc import tree
from xfunc.backends import active
from xfunc.backends.donated import check_given_once, run_donating
from xfunc.backends.lock import lock
from xfunc.backends.placement import hand_on_mesh
from xfunc.backends.protocol import Executable, Runtime
from xfunc.core import ambient
from xfunc.core.avals import Aval
from xfunc.core.size_questions import NONE, Questions
from xfunc.program.bind import bind
from xfunc.program.call import Call
from xfunc.program.program import TracedProgram
from xfunc.stages.compiler_options import CompilerOptions
from xfunc.torchlib import functorch
from xfunc.trace import effects, tracing
from xfunc.trace.effects import Effect
from xfunc.tree import PyTree


@dataclasses.dataclass(eq=False)
class Entry:
    """A cached program and how to call it.

    Attributes:
        program: of the flattened function.
        out_tree: the structure of its results.
        captures: for each capture, where to find it: among the tensors that the function holds
            (an index), or as itself.
        donated: flat arguments with buffers that the program may reuse.
        effects: delivered after each run; their tensors are the program's last outputs.
        compiler: compiler options by name.
        questions: what the function asked about sizes, if they are recorded.
        executable: the last executable that ran; None before the first run.
    """

    program: TracedProgram
    call: Call
    out_tree: tree.Structure
    captures: tuple[int | torch.Tensor, ...]
    donated: frozenset[int] = frozenset()
    effects: tuple[Effect, ...] = ()
    compiler: CompilerOptions = ()
    questions: Questions = NONE
    executable: Executable | None = None
    _runtime: Runtime | None = None  # that of the last run

    @property
    def outputs(self) -> tuple[Aval, ...]:
        """Avals of the results, without the tensors of the effects."""
        outs = self.program.outputs
        return outs[: len(outs) - sum(e.size for e in self.effects)]

    def result(self, outs: Sequence[torch.Tensor]) -> PyTree:
        """The tree of results; delivers the effects."""
        if self.effects:
            outs = effects.take(self.effects, outs)
        return self.out_tree.unflatten(outs)

    def inputs(
        self, leaves: list[torch.Tensor], held: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Arguments and captures, in the program's order."""
        found = [held[c] if isinstance(c, int) else c for c in self.captures]
        if tracing.current() is None:
            found = active.runtime().all_to_device(found)
        return [*leaves, *found]

    def runs_alone(self) -> bool:
        """Whether each run needs the arguments and the executable, and nothing else."""
        return (
            not (self.captures or self.effects)
            and self.executable is not None
            and active.runtime().device_count() == 1
        )

    def run(self, leaves: list[torch.Tensor], held: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Call the program with tensors on the device, outside any trace.

        Where the result is going to be inspected, with the arguments, the donated ones are left
        to `mark_donated`.
        """
        if lock.is_shared and lock.is_held_here():
            with lock.let_go():
                return self._run(leaves, held)
        return self._run(leaves, held)

    def _run(self, leaves: list[torch.Tensor], held: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        flat = self.inputs(leaves, held) if self.captures else leaves
        if _is_differentiated(flat):
            # An autograd engine that ran before the device client started has no thread for it.
            functorch.run_backward_in_this_thread()
            return bind(self.call.compiled_with(self.compiler), flat)
        where = active.runtime()
        if where is not self._runtime:
            if not self.program.outputs:
                return []
            self.executable, self._runtime = None, where
        several = where.device_count() > 1
        if self.donated and ambient.inspector() is not None:
            check_given_once(flat, self.donated, self.program.name)
            executable = self._executable(where, flat, frozenset())
            outputs = executable([flat[i] for i in executable.inputs])
            if several:
                hand_on_mesh(flat, outputs)
            return outputs
        run = self.executable
        if run is None or several:
            run = self._executable(where, flat, self.donated)
            self.executable = run
        if self.donated:
            outputs = run_donating(run, flat, self.donated, self.program.name)
        else:
            outputs = run([flat[i] for i in run.inputs])
        if several:
            hand_on_mesh(flat, outputs)
        return outputs

    def _executable(
        self, where: Runtime, flat: Sequence[torch.Tensor], donated: frozenset[int]
    ) -> Executable:
        lowering = self.program.lowering
        return lowering.executable(donated, where.placements(flat), self.compiler)

    def mark_donated(self, leaves: list[torch.Tensor], held: Sequence[torch.Tensor]) -> None:
        """Make the donated arguments of a `run` unusable, once its result has been inspected."""
        flat = self.inputs(leaves, held)
        if self.donated and self.program.outputs and not _is_differentiated(flat):
            executable = self._executable(active.runtime(), flat, frozenset())
            executable.mark_donated([leaves[i] for i in self.donated])


def _is_differentiated(flat: Sequence[torch.Tensor]) -> bool:
    """Whether a call with these tensors is being differentiated."""
    return (
        functorch.top_level() is not None
        or (torch.is_grad_enabled() and functorch.any_requires_grad(*flat))
        or functorch.any_dual(*flat)
    )
