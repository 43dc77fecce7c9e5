"""Errors about sizes that `dynamic_shapes` declares: see `error_cases`."""

# ruff: noqa: E501 (a line of a message is as long as it is)

from tests.support.error_sections.case import Case, Section

SIZES = Section(
    "ShapeError",
    "*(ValueError)* A size is not what `dynamic_shapes` declares. See [dynamic shapes](dynamic-shapes.md).",
    [
        Case(
            "A size is larger than the declared maximum.",
            """\
S = xf.Dim("S", max=512)
total = xf.jit(torch.sum, dynamic_shapes=((S,),))
total(torch.ones(600))
""",
            """\
ShapeError: dimension 0 of argument 0 of sum is 600, which is declared as S; S is at most 512
  at example.py:3 in <module>: total(torch.ones(600))
Hint: declare Dim('S', ...) with other bounds, or pass another size.""",
            """\
total(torch.ones(500))
""",
        ),
        Case(
            "Two arguments disagree about a size.",
            """\
def distance(x, y):
    return ((x - y) ** 2).sum()

S = xf.Dim("S")
distance = xf.jit(distance, dynamic_shapes=((S,), (S,)))
distance(torch.ones(5), torch.ones(6))
""",
            """\
ShapeError: dimension 0 of y of distance is 6 where S is declared, but dimension 0 of x of distance makes it S=5
  at example.py:6 in <module>: distance(torch.ones(5), torch.ones(6))
Hint: pass arguments that agree about S.""",
            """\
distance(torch.ones(6), torch.ones(6))
""",
        ),
    ],
)
