"""The keys of a `config.json`, none of which is silently ignored."""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

# Keys that do not affect what is computed.
SILENT = frozenset(
    """
    _name_or_path architectures auto_map bad_words_ids begin_suppress_tokens bos_token_id
    cache_implementation chunk_size_feed_forward diversity_penalty do_sample dtype early_stopping
    encoder_no_repeat_ngram_size eos_token_id exponential_decay_length_penalty finetuning_task
    forced_bos_token_id forced_eos_token_id id2label initializer_range is_llama_config label2id
    length_penalty max_length max_position_embeddings min_length model_type name_or_path
    no_repeat_ngram_size num_beam_groups num_beams num_return_sequences output_attentions
    output_hidden_states output_router_logits output_scores pad_token_id prefix pretraining_tp
    problem_type remove_invalid_values repetition_penalty return_dict return_dict_in_generate
    router_aux_loss_coef sep_token_id suppress_tokens task_specific_params temperature
    tf_legacy_loss tokenizer_class top_k top_p torch_dtype torchscript transformers.js_config
    transformers_version typical_p unsloth_fixed unsloth_version use_bfloat16 use_cache use_qk_norm
    """.split()
)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_list(of: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(of, value))


# What a key must be, unless it is null: a test, its description, and the keys.
_KINDS: list[tuple[Callable[[Any], bool], str, str]] = [
    (
        lambda x: _is_number(x) and isinstance(x, int) and x > 0,
        "a whole number above 0",
        """
        vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads
        num_key_value_heads head_dim max_position_embeddings sliding_window_pattern
        _sliding_window_pattern num_local_experts num_experts num_experts_per_tok
        moe_intermediate_size no_rope_layer_interval n_routed_experts n_group topk_group
        decoder_sparse_step kv_lora_rank q_lora_rank qk_rope_head_dim qk_nope_head_dim v_head_dim
        """,
    ),
    (
        lambda x: _is_number(x) and isinstance(x, int) and x >= 0,
        "a whole number",
        """
        max_window_layers shared_expert_intermediate_size sliding_window n_shared_experts
        first_k_dense_replace num_nextn_predict_layers
        """,
    ),
    (
        lambda x: _is_number(x) and x > 0,
        "a number above 0",
        """
        rms_norm_eps rope_theta rope_local_base_freq query_pre_attn_scalar attn_logit_softcapping
        final_logit_softcapping factor low_freq_factor high_freq_factor attention_factor beta_fast
        beta_slow original_max_position_embeddings embedding_multiplier residual_multiplier
        attention_multiplier logits_scaling partial_rotary_factor swiglu_limit swiglu_alpha
        routed_scaling_factor
        """,
    ),
    (_is_number, "a number", "mscale mscale_all_dim"),
    (
        lambda x: isinstance(x, bool),
        "true or false",
        """
        tie_word_embeddings attention_bias attention_out_bias mlp_bias qkv_bias use_bias
        use_sliding_window norm_topk_prob truncate rope_interleave
        """,
    ),
    (
        lambda x: isinstance(x, dict),
        "an object",
        "rope_scaling rope_parameters full_attention sliding_attention quantization_config",
    ),
    (_is_list(lambda x: isinstance(x, int)), "a list of whole numbers", "mlp_only_layers"),
    (_is_list(lambda x: isinstance(x, str)), "a list of texts", "layer_types"),
    (
        _is_list(lambda x: _is_number(x) and x > 0),
        "a list of numbers above 0",
        "short_factor long_factor",
    ),
    (_is_list(lambda x: x in (0, 1)), "a list of 0 and 1", "no_rope_layers"),
]


class FormatError(ValueError):
    """A folder does not hold a model that `model` can compute."""


class Fields:
    """The keys of an object in a file, and which of them have been read.

    Raises:
        FormatError: a value is of the wrong type or out of range.
    """

    def __init__(self, path: Path, fields: Mapping[str, Any], within: str = "") -> None:
        self.path, self.fields, self.within = path, dict(fields), within
        self.seen: set[str] = set()
        for is_right, wanted, names in _KINDS:
            for key in names.split():
                if (value := self.fields.get(key)) is not None and not is_right(value):
                    self.refuse(key, f"which must be {wanted}: download the file again")

    def take(self, key: str, default: Any = None) -> Any:
        """The value of a key; `default` if it is left out."""
        self.seen.add(key)
        return self.fields.get(key, default)

    def some(self, key: str, default: Any) -> Any:
        """The same, but null counts as left out."""
        value = self.take(key)
        return default if value is None else value

    def all_of(self, names: str) -> list[Any]:
        """The values of required keys."""
        if missing := [name for name in names.split() if self.fields.get(name) is None]:
            found = ", ".join(self.within + name for name in missing)
            raise FormatError(f"{self.path} lacks {found}: download the whole file from the hub")
        return [self.take(name) for name in names.split()]

    def only(self, key: str, *values: Any) -> None:
        """Raise an error unless the key is left out, null or one of `values`."""
        value = self.take(key)
        if value is not None and value not in values:
            known = " or ".join(map(repr, values)) or "null"
            self.refuse(key, f"but the model only supports {known}: give weights without it")

    def refuse(self, key: str, why: str) -> None:
        """Raise an error about the value of a key."""
        raise FormatError(f"{self.path} has {self.within}{key} {self.fields.get(key)!r}, {why}")

    def check_all_seen(self, silent: frozenset[str] = frozenset()) -> None:
        """Raise an error if there is a key with a value that has not been read."""
        left = [key for key in self.fields if key not in self.seen | silent and self.fields[key]]
        if left:
            found = ", ".join(f"{self.within}{key} {self.fields[key]!r}" for key in left)
            raise FormatError(
                f"{self.path} has {found}, which the model does not support: remove it if it "
                "does not affect the computation"
            )


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file."""
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise FormatError(f"{path} is damaged ({error}): download it again") from None
    if not isinstance(found, dict):
        raise FormatError(f"{path} is damaged (it is not a JSON object): download it again")
    return found
