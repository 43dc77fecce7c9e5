"""Weights in codes of bitsandbytes, as transformers writes them."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import xfunc as xf
from examples.llama import config, model
from examples.llama.checkpoint import trained_weights
from examples.llama.families.fields import FormatError
from examples.llama.hub import hf
from examples.llama.model import quantised
from examples.llama.train import fit
from examples.llama.tune import base_weights, lora
from tests.llama import tuned
from tests.llama.tuned import SIZES

KINDS: dict[str, dict[str, Any]] = {
    "nf4": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "nf4, scales in codes": {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": True,
    },
    "nf4 of bfloat16": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "int8": {"load_in_8bit": True},
}


@pytest.fixture(scope="module")
def folders(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """Makes the folder of a model whose maps within layers are quantised, and the model."""
    found: dict[str, Any] = {}

    def make(kind: str) -> Any:
        if kind not in found:
            folder = tmp_path_factory.mktemp("codes") / "hub"
            settings: Any = transformers.BitsAndBytesConfig(**KINDS[kind])
            dtype = torch.bfloat16 if "bfloat16" in kind else torch.float32
            load: Any = transformers.LlamaForCausalLM.from_pretrained
            how = {"quantization_config": settings, "device_map": "cpu", "dtype": dtype}
            theirs = load(made / "hub", **how)
            theirs.save_pretrained(folder)
            for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
                shutil.copy(made / "hub" / name, folder)
            found[kind] = folder, theirs
        return found[kind]

    return make


def plain(module: Any) -> torch.Tensor:
    """What the codes of a map stand for, by bitsandbytes, in float32."""
    from bitsandbytes import functional  # seconds to import

    weight = module.weight
    if weight.dtype == torch.int8:
        return functional.int8_vectorwise_dequant(weight.data, weight.SCB)
    state = weight.quant_state
    state.dtype = torch.float32
    return functional.dequantize_4bit(weight.data, state)


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize("kind", KINDS)
def test_bnb_codes_and_scales_kept_by_load(folders: Callable[[str], Any], kind: str) -> None:
    """A base in the form of the files has their codes and scales; a plain one what these stand for,
    in the dtype from before.
    """
    folder, theirs = folders(kind)
    form = "int8" if kind == "int8" else "nf4"
    sizes, numbers = hf.load(folder)
    assert sizes == SIZES
    forms = lora.forms(SIZES, lora.Tune(("layers.wq",), base=form))
    run = trained_weights.load_published(folder, None, [], config.TUNING)
    every = hf.load(folder, None, base_weights.every_sharding(run.recipe), forms)[1]["layers"]
    rounded = hf.load(folder, None, base_weights.every_sharding(run.recipe))[1]["layers"]
    stored = load_file(folder / hf.SINGLE)
    names = {"wq": "self_attn.q_proj", "w_down": "mlp.down_proj", "wo": "self_attn.o_proj"}
    for name, module in names.items():
        (expected,) = [plain(one) for n, one in theirs.named_modules() if n.endswith(module)]
        near: Any = {"rtol": 1e-6 if form == "int8" else 0.0, "atol": 0.0}
        torch.testing.assert_close(numbers["layers"][name][0], expected, **near)
        codes, scale = xf.device_get(every[name])
        key = f"model.layers.0.{module}.weight"
        if form == "int8":
            torch.testing.assert_close(codes[0], stored[key], rtol=0, atol=0)
        else:
            torch.testing.assert_close(codes[0].mT.reshape(-1, 1), stored[key], rtol=0, atol=0)
        again = quantised.Quantised(codes[0], scale[0]).plain()
        torch.testing.assert_close(again, expected, **near)
        dtype = torch.bfloat16 if "bfloat16" in kind else torch.float32
        kept = xf.device_get(rounded[name])[0]
        torch.testing.assert_close(kept, expected.to(dtype), **near)


@pytest.mark.slow
def test_bnb_base_training_and_export(
    folders: Callable[[str], Any], made: Path, tmp_path: Path
) -> None:
    """A run on a folder in codes: logits are those of transformers with their numbers, the export
    is of plain weights.
    """
    folder, theirs = folders("nf4, scales in codes")
    data = tmp_path / "data"
    data.mkdir()
    (data / "chat.jsonl").write_bytes((made / "chat.jsonl").read_bytes())
    shutil.copytree(folder, data / "hub")
    found = trained_weights.load(Path(tuned.begin(data, tmp_path / "plain", "adapters").folder))
    check = torch.randint(SIZES.vocab, (2, 9), generator=torch.Generator().manual_seed(0))
    load: Any = transformers.LlamaForCausalLM.from_pretrained
    reference = load(made / "hub", dtype=torch.float32)
    with torch.no_grad():
        # Their own products are in bfloat16 on some processors.
        for name, module in theirs.named_modules():
            if hasattr(getattr(module, "weight", None), "quant_state"):
                reference.get_submodule(name).weight.copy_(plain(module))
        expected = reference(check).logits
        assert (load(made / "hub")(check).logits - expected).abs().max() > 0.1
    logits = xf.jit(lambda params: model.forward(params, check, SIZES))(found.computing())
    torch.testing.assert_close(logits.cpu(), expected, rtol=0.0, atol=1e-5)
    begun = tuned.begin(data, tmp_path / "run", "adapters", "train.tune.base=nf4")
    assert fit.fit(begun).ended == "done"
    trained_weights.export_published(trained_weights.load(Path(begun.folder)), tmp_path / "out")
    assert "quantization_config" not in json.loads((tmp_path / "out" / "config.json").read_text())
    transformers.LlamaForCausalLM.from_pretrained(tmp_path / "out")


def changed(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    stored = load_file(folder / hf.SINGLE)
    change(stored)
    save_file(stored, folder / hf.SINGLE, metadata={"format": "pt"})


_KEY = "model.layers.0.self_attn.q_proj.weight"
_STATE = f"{_KEY}.quant_state.bitsandbytes__nf4"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop(f"{_KEY}.absmax"), r"codes of .*q_proj\.weight are damaged \('absmax'\)"),
        (lambda s: s.update({_STATE: s[_STATE][:9]}), r"nf4 is damaged \(.*\): download it again"),
        (lambda s: s.update({_KEY: s[_KEY][:9].clone()}), r"codes of .*q_proj\.weight are damaged"),
        (
            lambda s: s.pop(_STATE),
            r"q_proj\.weight: \(2048, 1\) in the files, \(64, 64\) by config",
        ),
    ],
    ids=["scales", "description", "codes", "no description"],
)
def test_bnb_damaged_codes_or_missing_library_errors(
    folders: Callable[[str], Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[dict[str, torch.Tensor]], object],
    message: str,
) -> None:
    """Or without the library."""
    shutil.copytree(folders("nf4")[0], tmp_path / "hub")
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "bitsandbytes", None)
        with pytest.raises(
            ValueError, match=r"is in 4 bits, which needs bitsandb.*, or give plain"
        ):
            hf.load(tmp_path / "hub")
    changed(tmp_path / "hub", change)
    with pytest.raises(FormatError, match=message):
        hf.load(tmp_path / "hub")
