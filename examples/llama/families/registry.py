"""All families, by `model_type` in `config.json`."""

from .family import Family
from .gemma import GEMMA2, GEMMA3
from .llama import LLAMA
from .mistral import MISTRAL, MIXTRAL
from .qwen import QWEN2, QWEN2_MOE, QWEN3, QWEN3_MOE

FAMILIES = {
    "llama": LLAMA,
    "mistral": MISTRAL,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "mixtral": MIXTRAL,
    "qwen2_moe": QWEN2_MOE,
    "qwen3_moe": QWEN3_MOE,
    "gemma2": GEMMA2,
    "gemma3_text": GEMMA3,
}


def register(model_type: str, family: Family) -> None:
    """Add a family, before settings or files are read: `main` and `hf.load` then know it.

    Args:
        model_type: its name, in `config.json` and as `train.model.family`.
        family: its traits, tensors and keys.

    Raises:
        ValueError: there is a family of that name.
    """
    if model_type in FAMILIES:
        raise ValueError(f"there is a family {model_type!r} already: give another name")
    FAMILIES[model_type] = family
