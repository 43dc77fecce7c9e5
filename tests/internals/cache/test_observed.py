"""What programs on disk depend on, compared with what is there now."""

import importlib
import sys

import pytest

from xfunc.cache.observed import same

pytestmark = pytest.mark.quick


def test_same_for_library_module_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "xml.sax.expatreader"
    importlib.import_module(name)
    links = {"xml.sax:expatreader": f"module {name}", "xml.sax:xmlreader": "module another"}
    assert same(links) == "xml.sax:xmlreader"
    monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("xml.sax.expatreader", raising=True)
    assert same({"xml.sax:expatreader": f"module {name}"}) is None
