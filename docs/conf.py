"""How Sphinx makes the site from the pages: `make docs`.

The pages are Markdown that reads well by itself, on GitHub too. What only the site needs is added
here, as each page is read: tables of contents, from the lists of the index pages; at the top of
each page of the API reference, a table of its names; and, below each heading such as
``## `xf.grad` ``, the signature and the docstring.
"""

import importlib
import inspect
import re
from pathlib import Path, PurePosixPath
from typing import Any

from sphinx.pycode import ModuleAnalyzer
from sphinx.util.typing import stringify_annotation

import xfunc
from docs.scripts import version_notes
from xfunc.core.types import ArrayLike

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
    "examples/llama/*.md",
]
# Not searched for pages.
exclude_patterns = [".*", "build", "dist", "xfunc", "transforms", "sharding", "tests", "benchmarks"]
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]

html_theme = "furo"
html_show_sourcelink = False
html_additional_pages = {"index": "redirect.html"}
html_static_path = ["static"]
html_css_files = ["site.css"]
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
autosummary_generate = False
autodoc_typehints_format = "short"
toc_object_entries = False  # the headings name the objects
napoleon_use_rtype = False

_LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]+)(#[^)\s]*)?\)")
_FOR_LAMBDAS = re.compile(r" \| [\w.~]*Callable\[\[[\w.~]*Concatenate\[[^\]]*\]\], [\w.~]+\]")
_NAMES = re.compile(r"^## (`xf[\w.]*`(, `xf[\w.]*`)*)$", re.MULTILINE)


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _complete)
    app.connect("autodoc-process-signature", _simplify)
    app.connect("html-page-context", _let_names_break)


def _complete(app: Any, docname: str, source: list[str]) -> None:
    text = source[0]
    if docname.endswith("/index"):
        text += _contents(text)
    elif docname.startswith("docs/reference/"):
        text = _with_summary(text)
        text = _NAMES.sub(lambda heading: heading[0] + _documented(heading[1]), text)
    if docname == "docs/upgrading":
        text = text.replace("<!-- the list -->", version_notes.markdown())
    folder = ROOT / PurePosixPath(docname).parent
    source[0] = _LINK.sub(lambda link: link[1] if (folder / link[2]).is_dir() else link[0], text)


def groups(text: str) -> dict[str, list[tuple[str, str]]]:
    """The sections of an index page whose list items or table rows start with a link to a page.

    Returns:
        By heading, the title and the path of each page.
    """
    sections = {}
    for section in re.split(r"^## ", text, flags=re.MULTILINE):
        heading = section.partition("\n")[0]
        pages = re.findall(r"^[-|] \[([^\]]+)\]\(([^)#\s]+\.md)\)", section, re.MULTILINE)
        if pages:
            sections[heading] = pages
    return sections


def _contents(text: str) -> str:
    """A table of contents for each group of pages, with the titles that the links have."""
    tables = []
    for heading, pages in groups(text).items():
        options = [":hidden:"]
        if not heading.startswith("# "):
            options.append(f":caption: {heading}")
        entries = [f"{title} <{path.removesuffix('.md')}>" for title, path in pages]
        tables.append("\n".join(["\n```{toctree}", *options, "", *entries, "```\n"]))
    return "".join(tables)


def _with_summary(text: str) -> str:
    """Add a table with a line about each name, above the first heading with names."""
    names = [name for heading in _NAMES.finditer(text) for name in _paths(heading[1])]
    rows = [name.removeprefix("xfunc.") for name in names if _has_summary(name)]
    lines = [
        "```{eval-rst}",
        ".. currentmodule:: xfunc",
        ".. autosummary::",
        "   :nosignatures:",
        "",
    ]
    lines += [*(f"   {row}" for row in rows), "```\n\n"]
    return _NAMES.sub(lambda heading: "\n".join(lines) + heading[0], text, count=1)


def _has_summary(path: str) -> bool:
    """Whether autosummary has a line for a name: not for a class's alias, nor bare data."""
    is_alias = inspect.isclass(found := _found(path)) and found.__name__ != path.rpartition(".")[2]
    return not is_alias and _directive(path) != "py:data"


def _paths(heading: str) -> list[str]:
    """The names in a heading, from `xfunc` on."""
    return [re.sub(r"^xf\b", "xfunc", name) for name in re.findall(r"`([^`]+)`", heading)]


def _documented(names: str) -> str:
    """What autodoc is to show below a heading with these names."""
    lines = ["\n\n```{eval-rst}", ".. currentmodule:: xfunc"]
    for path in _paths(names):
        _forget_overloads(path)
        lines += ["", f".. {_directive(path)}:: {path}"]
        # The fields of a named tuple are in its docstring.
        if lines[-1].startswith(".. autoclass") and not hasattr(_found(path), "_fields"):
            lines.append("   :members:")
    return "\n".join([*lines, "```"])


def _forget_overloads(path: str) -> None:
    """Show the signature of a function that has overloads, and not theirs."""
    module = getattr(inspect.unwrap(_found(path)), "__module__", None)
    if module and module.startswith("xfunc"):
        analyzer = ModuleAnalyzer.for_module(module)
        analyzer.analyze()
        analyzer.overloads.clear()


def _simplify(
    app: Any, what: str, name: str, value: object, options: Any, *parts: str | None
) -> Any:
    """Write a parameter specification as ``...``, since `P` is a spec here; and aliases by name.

    Of `CallableOrLambda`, only the first member is shown: the others are for type checkers.
    """
    array_like = stringify_annotation(ArrayLike, "smart")

    def simple(text: str) -> str:
        text = _FOR_LAMBDAS.sub("", text)
        text = re.sub(r"\[~P\](?=, )|~(typing\.~)?P\b", "...", text)
        return text.replace(array_like, "ArrayLike")

    return [part and simple(part) for part in parts]


def _let_names_break(app: Any, pagename: str, template: str, context: Any, doctree: Any) -> None:
    """Let a long name in a table break after a dot or an underscore."""

    def with_breaks(table: re.Match[str]) -> str:
        return long.sub(lambda name: re.sub(r"(?<=\w)[._](?=\w)", r"\g<0><wbr>", name[0]), table[0])

    long = re.compile(r'(?<=<span class="pre">)[^<]{20,}')
    tables = re.compile(r'<table class="docutils.*?</table>', re.DOTALL)
    context["body"] = tables.sub(with_breaks, context.get("body", ""))


def _found(path: str) -> Any:
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
