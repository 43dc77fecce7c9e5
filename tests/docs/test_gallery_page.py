"""The gallery's page agrees with the examples; `tests.support.gallery` compares what they print."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from docs.scripts import gallery, gallery_pictures
from tests.support.gallery import agree

ROOT = Path(__file__).parents[2]


def test_gallery_page_is_made_from_the_examples() -> None:
    text = gallery.PAGE.read_text(encoding="utf-8")
    made = gallery.page(gallery.shown_outputs(text))
    assert text == made, "the examples have changed: python -m docs.scripts.gallery"


def test_gallery_page_has_every_example_and_every_picture() -> None:
    files = (ROOT / "examples" / "gallery").glob("[!_]*.py")
    assert sorted(gallery.NAMES) == sorted(file.stem for file in files)
    assert set(gallery_pictures.PICTURES) <= set(gallery.NAMES)


@pytest.mark.parametrize("name", gallery_pictures.PICTURES)
def test_gallery_picture_is_small(name: str) -> None:
    file = ROOT / "docs" / "images" / f"{name}.png"
    assert file.stat().st_size < 40_000
    with Image.open(file) as image:
        assert image.format == "PNG"
        assert image.width <= 500


@pytest.mark.parametrize("name", gallery.NAMES)
def test_gallery_example_reads_alike(name: str) -> None:
    text = (ROOT / "examples" / "gallery" / f"{name}.py").read_text(encoding="utf-8")
    title, explanation, idiom, *_ = text.split('"""')[1].split("\n\n")
    assert ": " in title
    assert title.endswith(".")
    assert explanation.endswith(".")
    assert idiom.startswith("In JAX: ")
    assert 'if __name__ == "__main__":\n    main()\n' in text
    assert 30 <= text.count("\n") <= 80


@pytest.mark.parametrize(
    ("printed", "equal"),
    [
        ("loss: 1.2 after 300 steps\n", True),
        ("loss: 1.3 after 300 steps\n", True),
        ("loss: 1.6 after 300 steps\n", False),
        ("loss: -1.2 after 300 steps\n", False),
        ("loss: 1.2 after 400 steps\n", False),
        ("error: 1.2 after 300 steps\n", False),
    ],
)
def test_outputs_agree_but_for_small_differences(printed: str, equal: bool) -> None:
    assert agree(printed, "loss: 1.2 after 300 steps\n") is equal
