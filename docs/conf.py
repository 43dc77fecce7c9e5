"""How Sphinx makes the site from the pages: `make docs`.

The pages are Markdown that reads well by itself, on GitHub too. What only the site needs is put in
here, as each page is read: tables of contents, from the links of the index pages; and, below each
heading of the API reference such as ``## `xf.grad` ``, the signature and the docstring.
"""

import importlib
import inspect
import re
from pathlib import Path, PurePosixPath
from typing import Any

from sphinx.pycode import ModuleAnalyzer

import xfunc
from docs.scripts import version_notes

ROOT = Path(__file__).parent.parent

project = "xfunc"
author = "the authors of xfunc"
version = release = xfunc.__version__
html_title = f"xfunc {version}"

# The sources are the whole checkout, so that links between pages are the same as in it.
root_doc = "docs/index"
include_patterns = [
    "docs/**",
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "examples/llama/README.md",
]
# Not searched for pages.
exclude_patterns = [".*", "build", "dist", "xfunc", "transforms", "sharding", "tests", "benchmarks"]
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]

html_theme = "furo"
html_show_sourcelink = False
html_additional_pages = {"index": "redirect.html"}
templates_path = ["templates"]
pygments_style, pygments_dark_style = "friendly", "github-dark"

myst_heading_anchors = 4
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_output_stderr = "remove"  # XLA's log

default_role = "py:obj"
add_module_names = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
napoleon_use_rtype = False

_LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]+)(#[^)\s]*)?\)")
_NAMES = re.compile(r"^## (`xf[\w.]*`(, `xf[\w.]*`)*)$", re.MULTILINE)


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _complete)


def _complete(app: Any, docname: str, source: list[str]) -> None:
    text = source[0]
    if docname.endswith("/index"):
        text += _contents(text)
    if docname.startswith("docs/reference/"):
        text = _NAMES.sub(lambda heading: heading[0] + _documented(heading[1]), text)
    if docname == "docs/upgrading":
        text = text.replace("<!-- the list -->", version_notes.markdown())
    folder = ROOT / PurePosixPath(docname).parent
    source[0] = _LINK.sub(lambda link: link[1] if (folder / link[2]).is_dir() else link[0], text)


def _contents(text: str) -> str:
    """A table of contents for each section of an index page, of the pages that it links to."""
    found = []
    for section in re.split(r"^## ", text, flags=re.MULTILINE):
        caption = section.partition("\n")[0] if not section.startswith("# ") else ""
        pages = [target for _, target, anchor in _LINK.findall(section) if not anchor]
        pages = [page.removesuffix(".md") for page in pages if page.endswith(".md")]
        if pages:
            options = [":hidden:", *([f":caption: {caption}"] if caption else [])]
            found.append("\n".join(["\n```{toctree}", *options, "", *pages, "```\n"]))
    return "".join(found)


def _documented(names: str) -> str:
    """What autodoc is to show below a heading with these names."""
    lines = ["\n\n```{eval-rst}", ".. currentmodule:: xfunc"]
    for name in re.findall(r"`([^`]+)`", names):
        path = re.sub(r"^xf\b", "xfunc", name)
        lines += ["", f".. {_directive(path)}:: {path}"]
        # The fields of a named tuple are in its docstring.
        if lines[-1].startswith(".. autoclass") and not hasattr(_found(path), "_fields"):
            lines.append("   :members:")
    return "\n".join([*lines, "```"])


def _found(path: str) -> object:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def _directive(path: str) -> str:
    try:
        importlib.import_module(path)
        return "automodule"
    except ModuleNotFoundError:
        module, _, name = path.rpartition(".")
        found = _found(path)
    if inspect.isclass(found):
        return "autoexception" if issubclass(found, Exception) else "autoclass"
    if callable(found):
        return "autofunction"
    # Of data without a docstring, autodoc would show that of its class.
    says = ("", name) in ModuleAnalyzer.for_module(module).find_attr_docs()
    return "autodata" if says else "py:data"
