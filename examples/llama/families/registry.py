"""All families, by `model_type` in `config.json`."""

from .arcee import ARCEE
from .deepseek import DEEPSEEK_V3
from .ernie import ERNIE4_5
from .family import Family
from .gemma import GEMMA, GEMMA2, GEMMA3
from .glm import GLM4_MOE
from .gpt_oss import GPT_OSS
from .granite import GRANITE
from .llama import LLAMA
from .mistral import MISTRAL, MIXTRAL
from .olmo import OLMO2, OLMO3
from .phi import PHI3
from .qwen import QWEN2, QWEN2_MOE, QWEN3, QWEN3_MOE
from .seed import SEED_OSS
from .smollm import SMOLLM3

FAMILIES = {
    "llama": LLAMA,
    "mistral": MISTRAL,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "mixtral": MIXTRAL,
    "qwen2_moe": QWEN2_MOE,
    "qwen3_moe": QWEN3_MOE,
    "gemma": GEMMA,
    "gemma2": GEMMA2,
    "gemma3_text": GEMMA3,
    "granite": GRANITE,
    "olmo2": OLMO2,
    "olmo3": OLMO3,
    "smollm3": SMOLLM3,
    "phi3": PHI3,
    "seed_oss": SEED_OSS,
    "ernie4_5": ERNIE4_5,
    "arcee": ARCEE,
    "gpt_oss": GPT_OSS,
    "glm4_moe": GLM4_MOE,
    "deepseek_v3": DEEPSEEK_V3,
}


def register(model_type: str, family: Family) -> None:
    """Add a family, before settings or files are read: `main` and `hf.load` then know it.

    `model_type` is its name, in `config.json` and as `train.model.family`.
    """
    if model_type in FAMILIES:
        raise ValueError(f"there is a family {model_type!r} already: give another name")
    FAMILIES[model_type] = family
