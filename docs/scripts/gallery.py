"""The gallery's page and pictures: `python -m docs.scripts.gallery [NAME ...]` writes them.

The page is made from the docstrings of the examples and from what they print. Those that are not
named keep the output that the page shows.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import sys
import textwrap
from pathlib import Path

from docs.scripts import gallery_pictures

DOCS = Path(__file__).parents[1]
PAGE = DOCS / "gallery.md"

SECTIONS = {
    "Networks": ["convnet", "lstm", "graph_network", "lora"],
    "Generative models": ["vae", "gan", "normalizing_flow"],
    "Learning to act, and to learn": ["ppo", "maml", "hyperparameters"],
    "Fitting and sampling": ["kalman_filter", "hmc", "gauss_newton"],
    "Derivatives of solutions": ["neural_ode", "deep_equilibrium"],
    "Several devices": ["ring_attention", "mixture_of_experts"],
}
NAMES = [name for names in SECTIONS.values() for name in names]

INTRODUCTION = """\
# Gallery

Small programs as a JAX user would write them, each in one file of pure functions, and each with the
JAX idiom that it stands for. They run on the CPU, in some seconds:

    python -m examples.gallery.kalman_filter

`main()` returns the results, which [the tests](../tests/examples) compare with scipy, with finite
differences, with torch's own modules, or with a known solution.
"""


def page(outputs: dict[str, str]) -> str:
    """The page, with what each example prints."""
    parts = [INTRODUCTION]
    for title, names in SECTIONS.items():
        parts += [f"## {title}\n", *(section(name, outputs[name]) for name in names)]
    return "\n".join(parts)


def section(name: str, output: str) -> str:
    """The part of the page about one example."""
    doc = importlib.import_module(f"examples.gallery.{name}").__doc__ or ""
    first, _, rest = doc.strip().partition("\n\n")
    title, _, claim = first.partition(": ")
    lines = [
        f"### {title}\n",
        textwrap.fill(f"[{name}.py](../examples/gallery/{name}.py): {claim}", 100) + "\n",
        f"{rest}\n",
        f"```text\n{output}```\n",
    ]
    if name in gallery_pictures.PICTURES:
        lines.append(f"![{title}](images/{name}.png)\n")
    return "\n".join(lines)


def shown_outputs(text: str) -> dict[str, str]:
    """What a page shows as the output of each example."""
    pattern = r"^\[(\w+)\.py\]\(.*?^```text\n(.*?)^```$"
    return dict(re.findall(pattern, text, re.MULTILINE | re.DOTALL))


def main(names: list[str]) -> None:
    """Run the examples with these names, and write the page and their pictures."""
    outputs = shown_outputs(PAGE.read_text(encoding="utf-8")) if PAGE.exists() else {}
    for name in names or NAMES:
        example = importlib.import_module(f"examples.gallery.{name}")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            result = example.main()
        outputs[name] = printed.getvalue()
        gallery_pictures.save(name, result, DOCS / "images" / f"{name}.png")
    PAGE.write_text(page(outputs), encoding="utf-8")


if __name__ == "__main__":
    import xfunc as xf

    xf.config.set_cpu_devices(8)  # for the last two examples
    main(sys.argv[1:])
