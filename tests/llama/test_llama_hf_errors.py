"""Loading Hugging Face's files: errors of wrong ones, and additional tensors of older ones."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from examples.llama import model
from examples.llama.hub import hf
from tests.llama.hugging_face import assert_equal, random_params


def edit_config(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def edit_tensors(folder: Path, edit: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / hf.SINGLE)
    edit(tensors)
    save_file(tensors, folder / hf.SINGLE)


def cut_off(folder: Path) -> None:
    path = folder / hf.SINGLE
    path.write_bytes(path.read_bytes()[:-10])


WRONG = {
    "another model": (
        lambda f: edit_config(f, model_type="bert"),
        r"config.json has model_type 'bert': give a model of one of 'llama', 'mistral', .*gemma3",
    ),
    "no biases": (
        lambda f: edit_config(f, attention_bias=True, mlp_bias=True),
        r"(?s)do not fit its config.json:\n.*mlp.up_proj.bias: missing.*self_attn.q_proj.bias",
    ),
    "activation": (
        lambda f: edit_config(f, hidden_act="swish"),
        r"has hidden_act 'swish', but the model only supports 'silu', 'gelu', .*: give weights",
    ),
    "head size": (
        lambda f: edit_config(f, head_dim=16),
        r"q_proj.weight: \(32, 32\) in the files, \(64, 32\) by config.json",
    ),
    "odd head size": (
        lambda f: edit_config(f, head_dim=7),
        r"config.json does not describe a model \(.*features of a head an even number.*\): "
        r"download it again",
    ),
    "dropout": (
        lambda f: edit_config(f, attention_dropout=0.1),
        r"has attention_dropout 0.1, but the model only supports 0: give weights without it",
    ),
    "an unknown key": (
        lambda f: edit_config(f, use_sinks=True, layer_norms="none", some_other=False),
        r"has use_sinks True, layer_norms 'none', which the model does not support: remove it if",
    ),
    "part of the angles": (
        lambda f: edit_config(f, partial_rotary_factor=0.5),
        r"has partial_rotary_factor 0.5, but the model only supports 1",
    ),
    "an unknown key of the angles": (
        lambda f: edit_config(f, rope_scaling={"type": "linear", "factor": 2.0, "beta": 3}),
        r"has rope_scaling.beta 3, which the model does not support",
    ),
    "no factor": (
        lambda f: edit_config(f, rope_scaling={"type": "linear"}),
        r"lacks rope_scaling.factor: download the whole file",
    ),
    "layers of another kind": (
        lambda f: edit_config(f, layer_types=["full_attention", "chunked_attention"]),
        r"has layer_types \[.*'chunked_attention'\], and it must have 2, each 'full_attention'",
    ),
    "no layer with experts": (
        lambda f: edit_config(
            f,
            model_type="qwen3_moe",
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=8,
            mlp_only_layers=[0, 1],
        ),
        r"dense_layers has all layers: leave out experts",
    ),
    "quantized": (
        lambda f: edit_config(f, quantization_config={"quant_method": "fp8"}),
        r"has quantization_config \{'quant_method': 'fp8'\}, but weights in codes are not read",
    ),
    "rotary angles": (
        lambda f: edit_config(f, rope_scaling={"type": "ntk", "factor": 2.0}),
        r"has rope_scaling.type 'ntk', but the model only supports 'default', 'llama3', "
        r"'linear',",
    ),
    "half the angles": (
        lambda f: edit_config(f, rope_scaling={"rope_type": "llama3", "factor": 8.0}),
        r"lacks rope_scaling.low_freq_factor, rope_scaling.high_freq_factor, rope_scaling.orig",
    ),
    "no sizes": (
        lambda f: (f / "config.json").write_text('{"model_type": "llama", "vocab_size": 3}'),
        r"lacks hidden_size, intermediate_size, num_hidden_layers, num_attention_heads: download",
    ),
    "no JSON": (
        lambda f: (f / "config.json").write_text("{"),
        r"config.json is damaged \(Expecting property name.*\): download it again",
    ),
    "no object": (
        lambda f: (f / "config.json").write_text("[]"),
        r"config.json is damaged \(it is not a JSON object\): download it again",
    ),
    "tensors": (
        lambda f: edit_tensors(
            f,
            lambda t: (
                t.update(
                    {"model.norm.weight": torch.zeros(3), "model.layers.2.what": torch.zeros(1)}
                )
                or t.pop("lm_head.weight")
            ),
        ),
        r"(?s)do not fit its config.json:\n  lm_head.weight: missing\n"
        r"  model.layers.2.what: not a tensor of this model\n"
        r"  model.norm.weight: \(3,\) in the files, \(32,\) by config.json\ngive weights",
    ),
    "codes without scales": (
        lambda f: edit_tensors(
            f,
            lambda t: t.update(
                {
                    "model.norm.weight": t["model.norm.weight"].to(torch.int8),
                    "lm_head.weight": t["lm_head.weight"].to(torch.float8_e4m3fn),
                }
            ),
        ),
        r"(?s)  lm_head.weight: F8_E4M3, and weights are one of F64, F32, BF16, F16\n"
        r"  model.norm.weight: I8, and weights are one of ",
    ),
    "more layers": (
        lambda f: edit_config(f, num_hidden_layers=1),
        r"(?s)  model.layers.1.input_layernorm.weight: not a tensor of this model\n.*give weights",
    ),
    "a family that is no text": (
        lambda f: edit_config(f, model_type=["llama"]),
        r"config.json has model_type \['llama'\]: give a model of one of 'llama'",
    ),
    "null for a size": (
        lambda f: edit_config(f, hidden_size=None),
        r"config.json lacks hidden_size: download the whole file",
    ),
    "no heads": (
        lambda f: edit_config(f, num_attention_heads=0),
        r"has num_attention_heads 0, which must be a whole number above 0: download the file",
    ),
    "a text for a size": (
        lambda f: edit_config(f, num_hidden_layers="2"),
        r"has num_hidden_layers '2', which must be a whole number above 0",
    ),
    "a text for a bias": (
        lambda f: edit_config(f, attention_bias="false"),
        r"has attention_bias 'false', which must be true or false: download the file again",
    ),
    "no number": (
        lambda f: edit_config(f, rope_theta=float("nan")),
        r"has rope_theta nan, which must be a number above 0",
    ),
    "angles that are no object": (
        lambda f: edit_config(f, rope_scaling="linear"),
        r"has rope_scaling 'linear', which must be an object",
    ),
    "a factor of zero": (
        lambda f: edit_config(f, rope_scaling={"type": "linear", "factor": 0}),
        r"has rope_scaling.factor 0, which must be a number above 0",
    ),
    "bounds of the angles that are one": (
        lambda f: edit_config(
            f,
            rope_scaling={
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 4.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        ),
        r"low_freq_factor is 4.0, high_freq_factor is 4.0: use a larger number for the second",
    ),
    "one kind for all layers": (
        lambda f: edit_config(f, layer_types="full_attention"),
        r"has layer_types 'full_attention', which must be a list of texts",
    ),
    "angles of windows that are no object": (
        lambda f: edit_config(
            f, model_type="gemma3_text", rope_scaling={"sliding_attention": "default"}
        ),
        r"has rope_scaling.sliding_attention 'default', which must be an object",
    ),
    "no pattern of windows": (
        lambda f: edit_config(f, model_type="gemma3_text", sliding_window_pattern=0),
        r"has sliding_window_pattern 0, which must be a whole number above 0",
    ),
    "angles of long texts without factors": (
        lambda f: edit_config(f, rope_scaling={"type": "longrope", "factor": 2.0}),
        r"lacks rope_scaling.short_factor, rope_scaling.long_factor: download",
    ),
    "too few factors of angles": (
        lambda f: edit_config(
            f, rope_scaling={"type": "longrope", "short_factor": [1.0], "long_factor": [2.0] * 4}
        ),
        r"short_factors has 1 and long_factors 4: give one for each of 4 frequencies",
    ),
    "texts for factors of angles": (
        lambda f: edit_config(f, rope_scaling={"type": "longrope", "short_factor": ["1"]}),
        r"has rope_scaling.short_factor \['1'\], which must be a list of numbers above 0",
    ),
    "an odd part of the angles": (
        lambda f: edit_config(f, model_type="phi3", partial_rotary_factor=0.4),
        r"rotary_size is 3, a head has 8 features: use an even number of them",
    ),
    "rotary embeddings of some layers": (
        lambda f: edit_config(f, model_type="smollm3", no_rope_layers=[1]),
        r"has no_rope_layers \[1\], and it must have 2, one for each layer",
    ),
    "no text model": (
        lambda f: edit_config(f, model_type="gemma3"),
        r"config.json lacks text_config: download the whole file",
    ),
    "an index of no files": (
        lambda f: (f / hf.INDEX).write_text('{"weight_map": ["model.safetensors"]}'),
        r"index.json is damaged \(its weight_map names no files\): download it again",
    ),
    "cut off": (cut_off, r"model.safetensors is damaged \(.*\): download it again"),
}


@pytest.mark.parametrize("case", WRONG)
def test_load_of_wrong_files_raises(case: str, folder: Path) -> None:
    spoil, message = WRONG[case]
    hf.save(folder, config := model.TINY["tiny"], random_params(config))
    spoil(folder)
    with pytest.raises(hf.FormatError, match=message):
        hf.load(folder)


def test_load_ignores_additional_tensors_of_older_files(folder: Path) -> None:
    config = model.TINY["tiny-tied"]
    params = random_params(config)
    hf.save(folder, config, params)
    more = {
        "lm_head.weight": params["embed"].clone(),
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4),
    }
    edit_tensors(folder, lambda tensors: tensors.update(more))
    assert_equal(hf.load(folder)[1], params)


def test_load_ignores_keys_that_compute_nothing(folder: Path) -> None:
    """Of SmolLM2, Qwen3-Coder and unsloth; transformers reads none of them, either."""
    config = model.TINY["tiny"]
    params = random_params(config)
    hf.save(folder, config, params)
    more = {"transformers.js_config": {"kv_cache_dtype": {"fp16": "float16"}}}
    edit_config(folder, is_llama_config=True, use_qk_norm=True, unsloth_fixed=True, **more)
    assert hf.load_config(folder) == config
    assert_equal(hf.load(folder)[1], params)
