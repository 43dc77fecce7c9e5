"""Weights in Hugging Face's files: what is written is read, by transformers too."""

import dataclasses
import json
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

import xfunc as xf
from examples.llama import model
from examples.llama.data import documents, tokenizer
from examples.llama.hub import hf
from tests.llama.hugging_face import CONFIGS, assert_equal, by_hub_name, random_params, theirs

# Files


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_save_load_round_trip_in_shards(
    config: model.Config, folder: Path, dtype: torch.dtype
) -> None:
    params = random_params(config, dtype)
    hf.save(folder, config, params, max_shard_size=9000)
    index = json.loads((folder / hf.INDEX).read_text())
    files = {path.name for path in folder.glob("*.safetensors")}
    assert len(files) > 1
    assert set(index["weight_map"].values()) == files
    found, loaded = hf.load(folder)
    assert found == config
    assert_equal(loaded, params)
    _, wide = hf.load(folder, dtype=torch.float64)
    assert_equal(wide, xf.tree.map(torch.Tensor.double, params))
    assert sorted(path.name for path in folder.parent.iterdir()) == ["weights"]


def test_load_of_files_saved_by_transformers(config: model.Config, folder: Path) -> None:
    import transformers

    fields = hf.config_json(config, torch.float32, context=512)
    torch.manual_seed(0)
    reference: Any = transformers.LlamaForCausalLM(transformers.LlamaConfig.from_dict(fields))
    reference.save_pretrained(folder, max_shard_size="20KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    found, params = hf.load(folder)
    assert found == config
    weights = by_hub_name(config, params)
    for name, parameter in reference.named_parameters():
        assert_equal(weights.pop(name), parameter.data)
    assert not weights


def test_load_config_with_rope_parameters(folder: Path) -> None:
    config = CONFIGS["scaled-tied"]
    older = hf.config_json(config, torch.float32, context=512)
    theta, scaling = older.pop("rope_theta"), older.pop("rope_scaling")
    folder.mkdir()
    (folder / "config.json").write_text(
        json.dumps(older | {"rope_parameters": {"rope_theta": theta} | scaling})
    )
    assert hf.load_config(folder) == config


def test_load_config_missing_fields_have_defaults(folder: Path) -> None:
    sizes = "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads"
    fields = {"model_type": "llama"} | dict.fromkeys(sizes.split(), 8) | {"hidden_size": 16}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(fields))
    assert hf.load_config(folder) == model.Config(
        8, 16, 8, 8, heads=8, kv_heads=8, rope_theta=10000.0, norm_eps=1e-6
    )


def test_load_with_shardings_holds_one_host_tensor_at_a_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = model.TINY["tiny"]
    params = random_params(config)
    hf.save(folder, config, params)
    put, seen = xf.device_put, []

    def watched(x: torch.Tensor, sharding: Any) -> torch.Tensor:
        assert [ref() for ref in seen] == [None] * len(seen)
        seen.append(weakref.ref(x))
        return put(x, sharding)

    monkeypatch.setattr(xf, "device_put", watched)
    mesh = xf.make_mesh((1,), ("x",))
    shardings = xf.tree.map(lambda _: xf.NamedSharding(mesh, xf.P()), params)
    _, loaded = hf.load(folder, shardings=shardings)
    assert len(seen) == 21  # 9 in each of 2 layers, and 3
    assert_equal(xf.device_get(loaded), params)


def test_save_of_device_tensors(folder: Path) -> None:
    config = model.TINY["tiny"]
    params = random_params(config)
    hf.save(folder, config, xf.device_put(params))
    assert_equal(hf.load(folder)[1], params)


def test_save_copies_the_tokenizer(folder: Path, tmp_path: Path) -> None:
    import transformers

    config = dataclasses.replace(model.TINY["tiny"], vocab=260)
    source = tmp_path / "source"
    source.mkdir()
    text = "Two  words, and ümlauts"
    tokenizer.train([text], 260, source)
    ours = tokenizer.load(source)
    hf.save(folder, config, random_params(config), source)
    loaded: Any = transformers.AutoTokenizer.from_pretrained(folder)
    assert loaded(text)["input_ids"] == ours.encode_prompt(text)
    assert loaded.decode(ours.encode([text])[0]) == text
    settings = theirs(folder).generation_config
    assert (settings.bos_token_id, settings.eos_token_id) == (ours.begin, ours.end) == (0, 1)

    # What the hub has beside it comes along, and alone it is what it was.
    (source / "generation_config.json").write_text('{"eos_token_id": [1, 7]}')
    (source / "tokenizer_config.json").unlink()
    again = tmp_path / "again"
    hf.save(again, config, random_params(config), source / "tokenizer.json")
    loaded = transformers.AutoTokenizer.from_pretrained(again)
    assert loaded(text)["input_ids"] == ours.encode_prompt(text)
    assert theirs(again).generation_config.eos_token_id == [1, 7]


def test_load_missing_files_raises(folder: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"there is no .*weights/config.json: give a folder"
    ):
        hf.load(folder)
    hf.save(folder, config := model.TINY["tiny"], random_params(config), max_shard_size=9000)
    paths = sorted(folder.glob("*.safetensors"))
    for path in paths[1:3]:
        path.unlink()
    with pytest.raises(
        FileNotFoundError, match=rf"there is no {paths[1]}, {paths[2]}: download the whole folder"
    ):
        hf.load(folder)
    (folder / hf.INDEX).unlink()
    with pytest.raises(FileNotFoundError, match=r"there is no .*weights/model.safetensors: "):
        hf.load(folder)


def test_save_failure_leaves_no_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, save_file = model.TINY["tiny"], hf.save_file
    params = random_params(config)

    def full(tensors: Any, path: Path, **kwargs: Any) -> None:
        if path.name.startswith("model-00003"):
            raise OSError(28, "No space left on device")
        save_file(tensors, path, **kwargs)

    monkeypatch.setattr(hf, "save_file", full)
    with pytest.raises(OSError, match="No space left"):
        hf.save(folder, config, params, max_shard_size=9000)
    assert list(folder.parent.iterdir()) == []
    with pytest.raises(documents.DataError, match=r"no tokenizer at .*tokenizer.json: give a"):
        hf.save(folder, config, params, tokenizer=folder.parent)
    assert list(folder.parent.iterdir()) == []

    # What a killed save has left is no hindrance; what is complete is never written over.
    (folder.parent / "weights.partial").mkdir()
    (folder.parent / "weights.partial" / "model-00009.safetensors").touch()
    hf.save(folder, config, params)
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    with pytest.raises(FileExistsError, match=r"weights already exists: give"):
        hf.save(folder, config, params)
