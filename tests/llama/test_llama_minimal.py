"""The example in one file: its loss falls, and its text goes on with the prompt."""

import re

import pytest

from examples.llama import minimal


def test_minimal_loss_falls_and_text_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    minimal.main(["--steps", "25"])
    said = capsys.readouterr().out
    losses = [float(x) for x in re.findall(r"loss (\S+)", said)]
    assert losses[0] > 5 > 3.2 > losses[-1]
    assert "\ndef " in said
