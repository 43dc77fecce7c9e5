"""SmolLM 3: layers without rotary embeddings."""

from typing import Any

from .family import Family
from .fields import Fields
from .keys import read_biases, read_windows, write_windows
from .llama import LLAMA


def _read(fields: Fields) -> dict[str, Any]:
    layers, every = fields.take("num_hidden_layers"), fields.some("no_rope_layer_interval", 4)
    turned = fields.some("no_rope_layers", [int((i + 1) % every != 0) for i in range(layers)])
    if len(turned) < layers:
        fields.refuse("no_rope_layers", f"and it must have {layers}, one for each layer")
    still = tuple(i for i in range(layers) if not turned[i])
    fields.take("max_window_layers")
    window = fields.take("sliding_window") if fields.take("use_sliding_window") else None
    return {
        **read_biases(fields),
        **read_windows(fields, window, still.__contains__),
        "mlp_bias": bool(fields.take("mlp_bias")),
        "nope_layers": still,
    }


SMOLLM3 = Family(
    "SmolLM3ForCausalLM",
    _read,
    lambda c: {
        **LLAMA.write(c),
        **write_windows(c),
        "use_sliding_window": c.window is not None,
        "no_rope_layers": [int(i not in c.nope_layers) for i in range(c.layers)],
    },
    defaults={"num_key_value_heads": 4, "tie_word_embeddings": True, "rope_theta": 2e6},
)
