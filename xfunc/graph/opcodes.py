"""Sets of HLO opcodes, by properties that passes and analyses need."""

from __future__ import annotations


def _set(names: str) -> frozenset[str]:
    return frozenset(names.split())


# ------------------------------------------------------------------ operations on each element

CHEAP = _set(
    "abs add and ceil clamp compare complex floor imag is-finite maximum minimum multiply negate "
    "not or real round-nearest-afz round-nearest-even select shift-left shift-right-arithmetic "
    "shift-right-logical sign subtract xor"
)
TRANSCENDENTAL = _set(
    "atan2 cbrt cosine erf exponential exponential-minus-one log log-plus-one logistic power rsqrt "
    "sine sqrt tan tanh"
)
SLOW = TRANSCENDENTAL | _set("divide remainder")
ELEMENTWISE = CHEAP | SLOW
"""Operations on each element that compute other numbers."""
ENCODINGS = _set("bitcast-convert convert copy count-leading-zeros popcnt reduce-precision")
"""Also on each element: the same number in another encoding, or properties of its bits."""
COARSE = _set("dot convolution remainder") | TRANSCENDENTAL
"""Operations that XLA computes in a narrow type, with more than a rounding error."""

# ---------------------------------------------------------------------------- moving elements

INDEXED = _set("dynamic-slice dynamic-update-slice gather")
MOVES = _set(
    "bitcast broadcast concatenate dynamic-slice gather iota pad reshape reverse slice transpose"
)
"""Operations that can be fused into their users."""
FREE = _set("reshape transpose broadcast convert bitcast bitcast-convert iota constant")
"""Operations that cost nothing to recompute."""
IN_PLACE = _set("dynamic-update-slice scatter")
"""Operations that may write into their first operand."""
COUNTED_AS_MOVES = (MOVES - {"bitcast"}) | _set(
    "copy dynamic-update-slice bitcast-convert custom-call rng-bit-generator all-gather all-to-all "
    "collective-permute copy-start copy-done send send-done recv recv-done infeed outfeed domain "
    "rng-get-and-update-state"
)
"""Operations that XLA's cost analysis counts as memory traffic only."""
COUNTED_AS_NOTHING = _set(
    "parameter constant tuple get-tuple-element bitcast opt-barrier after-all partition-id "
    "replica-id"
)

# ----------------------------------------------------------------------- products, reductions

PRODUCTS = _set("dot convolution")
ACCUMULATING = _set("reduce reduce-window scatter select-and-scatter")
COUNTED_PER_ELEMENT = ACCUMULATING | _set("map sort all-reduce reduce-scatter")

# ----------------------------------------------------------------- devices, effects and state

COLLECTIVES = _set("all-reduce all-gather reduce-scatter all-to-all collective-permute")
TRANSFERS = _set("send send-done recv recv-done infeed outfeed")
"""Operations that exchange data with other devices or the host, with side effects."""
ONCE = _set(
    "rng rng-get-and-update-state ragged-all-to-all collective-broadcast all-reduce-start "
    "all-gather-start collective-permute-start send recv infeed outfeed"
)
"""Operations that must not run twice: random state, input and output, parts of collectives."""
RUNS = _set("call while conditional")
"""Operations that run the computations they call, rather than applying them to elements."""
CALLING = (
    RUNS
    | COUNTED_PER_ELEMENT
    | _set("all-reduce-start async-done async-start async-update custom-call fusion")
)
"""All operations that may call computations."""

# ------------------------------------------------------------------------- groups of several

LEAVES = _set("parameter constant iota")
"""Operations without operands."""

PURE = (
    ELEMENTWISE
    | ENCODINGS
    | MOVES
    | INDEXED
    | PRODUCTS
    | ACCUMULATING
    | _set("constant fft get-tuple-element map sort")
)
"""Pure operations: the same operands give the same result, without effects."""
PER_SHARD = (
    ELEMENTWISE
    | ENCODINGS
    | _set("opt-barrier all-reduce pad slice reverse concatenate")
    | _set("dynamic-slice dynamic-update-slice")
)
"""Operations sharded like their operands, except along axes where they mix elements."""
PARTITIONABLE = (
    (PURE - _set("bitcast copy count-leading-zeros fft map reduce-precision"))
    | RUNS
    | _set("opt-barrier parameter tuple all-reduce reduce-scatter collective-permute")
)
"""Operations that XLA's partitioner shards in a region that is manual over only some axes."""
