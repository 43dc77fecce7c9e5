"""The sizes of published models, from the config.json files on the hub."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import xfunc as xf
from examples.llama import model
from examples.llama.hub import hf

# Published models: numbers of the config.json files on the hub

SHARED = {
    "model_type": "llama",
    "attention_bias": False,
    "hidden_act": "silu",
    "mlp_bias": False,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "vocab_size": 128256,
}
SCALING = {
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
QWEN3 = {
    "head_dim": 128,
    "num_attention_heads": 32,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
PUBLISHED = {
    "llama3.2-1b": {
        "head_dim": 64,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_attention_heads": 32,
        "num_hidden_layers": 16,
        "rope_scaling": {"factor": 32.0} | SCALING,
        "tie_word_embeddings": True,
    },
    "llama3.2-3b": {
        "head_dim": 128,
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_attention_heads": 24,
        "num_hidden_layers": 28,
        "rope_scaling": {"factor": 32.0} | SCALING,
        "tie_word_embeddings": True,
    },
    "llama3.1-8b": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "rope_scaling": {"factor": 8.0} | SCALING,
        "tie_word_embeddings": False,
    },
    "llama3.1-70b": {
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_attention_heads": 64,
        "num_hidden_layers": 80,
        "rope_scaling": {"factor": 8.0} | SCALING,
        "tie_word_embeddings": False,
    },
    "llama3.1-405b": {
        "hidden_size": 16384,
        "intermediate_size": 53248,
        "num_attention_heads": 128,
        "num_hidden_layers": 126,
        "rope_scaling": {"factor": 8.0} | SCALING,
        "tie_word_embeddings": False,
    },
    "mistral-7b": {
        "model_type": "mistral",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "rope_theta": 10000.0,
        "sliding_window": 4096,
        "vocab_size": 32000,
    },
    "qwen2.5-7b": {
        "model_type": "qwen2",
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "max_window_layers": 28,
        "num_attention_heads": 28,
        "num_hidden_layers": 28,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "sliding_window": 131072,
        "use_mrope": False,
        "use_sliding_window": False,
        "vocab_size": 152064,
    },
    "qwen3-8b": QWEN3
    | {
        "model_type": "qwen3",
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "max_window_layers": 36,
        "num_hidden_layers": 36,
    },
    "mixtral-8x7b": {
        "model_type": "mixtral",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 32,
        "num_local_experts": 8,
        "rope_theta": 1000000.0,
        "router_aux_loss_coef": 0.02,
        "sliding_window": None,
        "vocab_size": 32000,
    },
    "qwen3-30b-a3b": QWEN3
    | {
        "model_type": "qwen3_moe",
        "decoder_sparse_step": 1,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "max_window_layers": 48,
        "mlp_only_layers": [],
        "moe_intermediate_size": 768,
        "norm_topk_prob": True,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 48,
        "num_key_value_heads": 4,
        "router_aux_loss_coef": 0.001,
    },
    "glm4.5-air": {
        "model_type": "glm4_moe",
        "attention_bias": True,
        "first_k_dense_replace": 1,
        "head_dim": 128,
        "hidden_size": 4096,
        "intermediate_size": 10944,
        "moe_intermediate_size": 1408,
        "n_group": 1,
        "n_routed_experts": 128,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_attention_heads": 96,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 46,
        "num_nextn_predict_layers": 1,
        "partial_rotary_factor": 0.5,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "routed_scaling_factor": 1.0,
        "topk_group": 1,
        "use_qk_norm": False,
        "vocab_size": 151552,
    },
    "deepseek-v3": {
        "model_type": "deepseek_v3",
        "aux_loss_alpha": 0.001,
        "ep_size": 1,
        "first_k_dense_replace": 3,
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "kv_lora_rank": 512,
        "moe_intermediate_size": 2048,
        "moe_layer_freq": 1,
        "n_group": 8,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_attention_heads": 128,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 61,
        "num_key_value_heads": 128,
        "num_nextn_predict_layers": 1,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "rms_norm_eps": 1e-06,
        "rope_scaling": {
            "beta_fast": 32,
            "beta_slow": 1,
            "factor": 40,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 4096,
            "type": "yarn",
        },
        "rope_theta": 10000,
        "routed_scaling_factor": 2.5,
        "scoring_func": "sigmoid",
        "seq_aux": True,
        "topk_group": 4,
        "topk_method": "noaux_tc",
        "v_head_dim": 128,
        "vocab_size": 129280,
    },
}


@pytest.mark.parametrize("name", model.PUBLISHED)
def test_load_config_of_published_models(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SHARED | PUBLISHED[name]))
    assert hf.load_config(tmp_path) == model.PUBLISHED[name]


@pytest.mark.parametrize("name", ["glm4.5-air", "deepseek-v3"])
def test_published_models_have_the_tensors_of_transformers(name: str, tmp_path: Path) -> None:
    import transformers

    (tmp_path / "config.json").write_text(json.dumps(SHARED | PUBLISHED[name]))
    settings = transformers.AutoConfig.from_pretrained(tmp_path)
    build: Any = transformers.AutoModelForCausalLM.from_config
    with torch.device("meta"):
        expected = build(settings).state_dict()
    config = model.PUBLISHED[name]
    found = hf.by_name(config, model.shapes(config))
    apart = "gate_proj", "up_proj", "down_proj"  # of experts, which it has in two tensors
    experts = [key for key in expected if ".experts." in key]
    own = {key for key in found if ".experts." not in key}
    assert own == expected.keys() - set(experts)
    assert len(found) - len(own) == len(experts) // 2 * settings.num_local_experts * len(apart)
    count = sum(math.prod(leaf.shape) for leaf in xf.tree.leaves(model.shapes(config)))
    assert count == sum(tensor.numel() for tensor in expected.values())


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("llama3.1-8b", 8_030_261_248),
        ("mistral-7b", 7_241_732_096),
        ("qwen2.5-7b", 7_615_616_512),
        ("qwen3-8b", 8_190_735_360),
        ("mixtral-8x7b", 46_702_792_704),
        ("qwen3-30b-a3b", 30_532_122_624),
    ],
)
def test_published_models_parameter_count(name: str, count: int) -> None:
    """Those that the hub says."""
    leaves = xf.tree.leaves(model.shapes(model.PUBLISHED[name]))
    assert sum(torch.Size(leaf.shape).numel() for leaf in leaves) == count
