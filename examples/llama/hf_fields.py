"""The keys of a `config.json`, none of which is silently ignored."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Keys that do not affect what is computed.
SILENT = frozenset(
    """
    _name_or_path architectures auto_map bad_words_ids begin_suppress_tokens bos_token_id
    cache_implementation chunk_size_feed_forward diversity_penalty do_sample dtype early_stopping
    encoder_no_repeat_ngram_size eos_token_id exponential_decay_length_penalty finetuning_task
    forced_bos_token_id forced_eos_token_id id2label initializer_range label2id length_penalty
    max_length max_position_embeddings min_length model_type name_or_path no_repeat_ngram_size
    num_beam_groups num_beams num_return_sequences output_attentions output_hidden_states
    output_router_logits output_scores pad_token_id prefix pretraining_tp problem_type
    remove_invalid_values repetition_penalty return_dict return_dict_in_generate
    router_aux_loss_coef sep_token_id suppress_tokens task_specific_params temperature
    tf_legacy_loss tokenizer_class top_k top_p torch_dtype torchscript transformers_version
    typical_p unsloth_fixed unsloth_version use_bfloat16 use_cache
    """.split()
)


class FormatError(ValueError):
    """A folder does not hold a model that `model` can compute."""


class Fields:
    """The keys of an object in a file, and which of them have been read."""

    def __init__(self, path: Path, fields: Mapping[str, Any], within: str = "") -> None:
        self.path, self.fields, self.within = path, dict(fields), within
        self.seen: set[str] = set()

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
        if missing := [name for name in names.split() if name not in self.fields]:
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
