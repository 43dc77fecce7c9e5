"""`torch.nn.LSTM`, `GRU` and `RNN` in traced code are loops over time, by `scan`.

torch composes these layers of one operation per step, so that the time to trace and to compile them
would grow with the length of the sequence. The product of the inputs with their weights does not
depend on the state, and is taken for all steps at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeAlias

import torch
import torch.nn.functional as F

from xfunc.errors import UnsupportedOpError, fail
from xfunc.random.replacements import REPLACEMENTS as DRAWS
from xfunc.torchlib import functorch
from xfunc.torchlib.replacements import REPLACEMENTS
from xfunc.trace import tracing
from xfunc.transforms.scan.scan import scan

Tensor = torch.Tensor
State: TypeAlias = tuple[Tensor, ...]
Cell: TypeAlias = Callable[..., State]


def _lstm_cell(
    state: State, x: Tensor, weight: Tensor, bias: Tensor | None, projection: Tensor | None
) -> State:
    """The next state of an LSTM; `x` is the product of the input with its weights."""
    h, c = state
    i, f, g, o = (x + F.linear(h, weight, bias)).chunk(4, -1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    h = o.sigmoid() * c.tanh()
    return (h if projection is None else F.linear(h, projection)), c


def _check_rows(input: Tensor, hx: Tensor) -> None:
    """As torch does: the rest of a cell would broadcast one row to the others."""
    if input.shape[:-1] != hx.shape[:-1]:
        rows, others = input.shape[0], hx.shape[0]
        raise RuntimeError(f"Input batch size {rows} doesn't match hidden0 batch size {others}")


def _one_lstm_cell(
    input: Tensor,
    hx: Sequence[Tensor],
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> State:
    """``torch.lstm_cell``, which torch cannot batch."""
    h, c = hx
    _check_rows(input, h)
    return _lstm_cell((h, c), F.linear(input, w_ih, b_ih), w_hh, b_hh, None)


def _gru_cell(state: State, x: Tensor, weight: Tensor, bias: Tensor | None, _: object) -> State:
    (h,) = state
    x_r, x_z, x_n = x.chunk(3, -1)
    h_r, h_z, h_n = F.linear(h, weight, bias).chunk(3, -1)
    n = (x_n + (x_r + h_r).sigmoid() * h_n).tanh()
    return ((h - n) * (x_z + h_z).sigmoid() + n,)


def _one_gru_cell(
    input: Tensor,
    hx: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> Tensor:
    """``torch.gru_cell``, in which torch writes into what may not be batched."""
    _check_rows(input, hx)
    return _gru_cell((hx,), F.linear(input, w_ih, b_ih), w_hh, b_hh, None)[0]


def _rnn_tanh_cell(
    state: State, x: Tensor, weight: Tensor, bias: Tensor | None, _: object
) -> State:
    return ((x + F.linear(state[0], weight, bias)).tanh(),)


def _rnn_relu_cell(
    state: State, x: Tensor, weight: Tensor, bias: Tensor | None, _: object
) -> State:
    return ((x + F.linear(state[0], weight, bias)).relu(),)


def _run_direction(
    cell: Cell, x: Tensor, state: State, params: Sequence[Tensor | None], reverse: bool
) -> tuple[State, Tensor]:
    """One layer in one direction: the last state, and the outputs ``[time, batch, features]``."""
    w_ih, w_hh, b_ih, b_hh, w_hr = params
    assert w_ih is not None

    def step(state: State, x: Tensor) -> tuple[State, Tensor]:
        found = cell(state, x, w_hh, b_hh, w_hr)
        state = tuple([new.to(old.dtype) for new, old in zip(found, state, strict=True)])
        return state, state[0]

    found: Any = scan(step, state, F.linear(x, w_ih, b_ih), reverse=reverse)
    return found


def _by_direction(
    params: Sequence[Tensor], has_biases: bool, projects: bool
) -> list[list[Tensor | None]]:
    """torch's flat list of parameters: ``w_ih, w_hh, b_ih, b_hh, w_hr`` of each direction."""
    n = 2 + 2 * has_biases + projects
    result = list[list[Tensor | None]]()
    for k in range(0, len(params), n):
        own = params[k : k + n]
        biases = own[2:4] if has_biases else (None, None)
        result.append([*own[:2], *biases, own[-1] if projects else None])
    return result


def _layers(
    cell: Cell,
    x: Tensor,
    initial: Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """The outputs, and the last state ``[layers * directions, batch, features]`` in its parts."""
    if batch_first:
        x = x.transpose(0, 1)
    if not x.shape[0]:
        raise RuntimeError("Expected sequence length to be larger than 0 in RNN")
    projects = len(initial) > 1 and initial[0].shape[-1] != initial[1].shape[-1]
    own = _by_direction(params, has_biases, projects)
    n_directions = 1 + bool(bidirectional)
    last = list[State]()
    for layer in range(num_layers):
        outputs = list[Tensor]()
        for direction in range(n_directions):
            k = layer * n_directions + direction
            state = tuple([s[k] for s in initial])
            state, output = _run_direction(cell, x, state, own[k], direction == 1)
            last.append(state)
            outputs.append(output)
        x = outputs[0] if n_directions == 1 else torch.cat(outputs, -1)
        if train and dropout and layer < num_layers - 1:
            x = F.dropout(x, dropout)
    final = [torch.stack(parts) for parts in zip(*last, strict=True)]
    return (x.transpose(0, 1) if batch_first else x), *final


def _refuse_packed(what: str) -> NoReturn:
    fail(
        UnsupportedOpError,
        f"{what} a PackedSequence, whose shape depends on data",
        "pass the padded sequences, and pick the last output of each: "
        "outputs.take_along_dim((lengths - 1)[None, :, None], 0).",
    )


def _pack(x: Tensor, lengths: Tensor, batch_first: bool) -> object:
    """``torch._pack_padded_sequence``, which `pack_padded_sequence` calls."""
    if tracing.current() is None:
        return torch._pack_padded_sequence(x, lengths, batch_first)
    return _refuse_packed("pack_padded_sequence makes")


def _loops(
    name: str,
    x: Tensor,
    initial: Tensor | Sequence[Tensor],
    params: Sequence[Tensor],
    *options: Any,
) -> object:
    """A function of torch, as loops over time."""
    if isinstance(initial, Tensor) and initial.dtype is torch.int64:  # the sizes of batches
        _refuse_packed(f"torch.{name} was given")
    states = [initial] if isinstance(initial, Tensor) else initial
    if len(states) != len(_STATES[name]):
        raise RuntimeError(f"{name} expects {' and '.join(_STATES[name])}")
    return _layers(_CELLS[name], x, states, params, *options)


def _replacement(name: str, func: Callable[..., object]) -> Callable[..., object]:
    def call(*args: Any) -> object:
        trace = tracing.current()
        if trace is None and functorch.VMAP not in functorch.levels():
            return func(*args)
        if trace is None:
            return _loops(name, *args)
        with trace.mode:
            return _loops(name, *args)

    return call


def _drawn(name: str) -> Callable[..., object]:
    def call(next_key: object, *args: Any) -> object:
        del next_key  # It is `F.dropout` that draws.
        return _loops(name, *args)

    return call


_STATES = {"lstm": ("h", "c"), "gru": ("h",), "rnn_tanh": ("h",), "rnn_relu": ("h",)}
_CELLS: dict[str, Cell] = {
    "lstm": _lstm_cell,
    "gru": _gru_cell,
    "rnn_tanh": _rnn_tanh_cell,
    "rnn_relu": _rnn_relu_cell,
}


def install() -> None:
    """Let traced code call these loops in place of torch's functions."""
    for name in _CELLS:
        func = getattr(torch, name)
        REPLACEMENTS[func] = _replacement(name, func)
        DRAWS[name] = _drawn(name)
    REPLACEMENTS[torch.lstm_cell] = _one_lstm_cell
    REPLACEMENTS[torch.gru_cell] = _one_gru_cell
    REPLACEMENTS[torch._pack_padded_sequence] = _pack
