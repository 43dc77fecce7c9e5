"""Models of the transformers package through `xf.functional`, against the models in eager torch."""

import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import pytest
import torch
import transformers
from torch import Tensor

import xfunc as xf

hub: Any = transformers  # Its stubs do not know the keywords of the configurations.

SIZES = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 32,
}
GROUPED = {**SIZES, "num_key_value_heads": 2}
IMAGES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": 16,
    "patch_size": 4,
}

IDS = torch.tensor([[5, 9, 3, 17, 4, 44, 8, 6, 7], [11, 3, 3, 21, 30, 4, 12, 49, 2]])
MASK = torch.ones_like(IDS)
MASK[0, 6:] = 0
TEXT = {"input_ids": IDS, "labels": IDS}
# The argument and the result that hold what earlier tokens left, renamed in transformers 5.24.
CACHE = (
    "cache" if "cache" in vars(hub.modeling_outputs.CausalLMOutputWithPast) else "past_key_values"
)
PADDED = {**TEXT, "attention_mask": MASK}
KINDS = torch.tensor([0, 1])
PIXELS = torch.linspace(-1, 1, 1536).reshape(2, 3, 16, 16)
SEEN = torch.cat([torch.full((2, 16), 48), IDS], 1)  # a token for each patch of an image


def gpt2(**options: Any) -> Any:
    config = hub.GPT2Config(
        vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=32, bos_token_id=1,
        eos_token_id=2, **options,
    )  # fmt: skip
    return hub.GPT2LMHeadModel(config)


def llama(**options: Any) -> Any:
    return hub.LlamaForCausalLM(hub.LlamaConfig(**GROUPED, **options))


def t5() -> Any:
    config = hub.T5Config(
        vocab_size=50, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4,
        decoder_start_token_id=0, pad_token_id=0,
    )  # fmt: skip
    return hub.T5ForConditionalGeneration(config)


def llava() -> Any:
    config = hub.LlavaConfig(
        vision_config=hub.CLIPVisionConfig(**IMAGES), text_config=hub.LlamaConfig(**GROUPED),
        image_token_id=48,
    )  # fmt: skip
    return hub.LlavaForConditionalGeneration(config)


# name -> (model, keyword arguments of a call, whether it is told not to return a cache)
MODELS: dict[str, tuple[Callable[[], Any], dict[str, Tensor], bool]] = {
    "gpt2": (gpt2, TEXT, True),
    "gpt2, padded": (gpt2, PADDED, True),
    "gpt2, eager attention": (lambda: gpt2(attn_implementation="eager"), PADDED, True),
    "llama": (llama, TEXT, True),
    "llama, padded": (llama, PADDED, True),
    "llama, tied": (lambda: llama(tie_word_embeddings=True), TEXT, True),
    "mistral": (
        lambda: hub.MistralForCausalLM(hub.MistralConfig(**GROUPED, sliding_window=4)),
        PADDED,
        True,
    ),
    "mixtral": (
        lambda: hub.MixtralForCausalLM(hub.MixtralConfig(**GROUPED, num_local_experts=4)),
        PADDED,
        True,
    ),
    "bert": (lambda: hub.BertForMaskedLM(hub.BertConfig(**SIZES)), PADDED, False),
    "bert, classes": (
        lambda: hub.BertForSequenceClassification(hub.BertConfig(**SIZES)),
        {**PADDED, "labels": KINDS},
        False,
    ),
    "vit": (
        lambda: hub.ViTForImageClassification(hub.ViTConfig(**IMAGES)),
        {"pixel_values": PIXELS, "labels": KINDS},
        False,
    ),
    "t5": (t5, PADDED, True),
    "llava": (llava, {"input_ids": SEEN, "labels": SEEN, "pixel_values": PIXELS}, True),
}


def assert_close(ours: Any, theirs: Any) -> None:
    torch.testing.assert_close(xf.device_get(ours), theirs, rtol=1e-3, atol=1e-5)


@pytest.mark.sample(4, seed=0)
@pytest.mark.parametrize("name", MODELS)
def test_transformers_outputs_and_grads_equal_eager(name: str) -> None:
    make, batch, cached = MODELS[name]
    torch.manual_seed(0)
    model = make().eval()
    options = {"use_cache": False} if cached else {}
    apply, params, buffers = xf.functional(model)

    def loss(params, batch):
        out, _ = apply(params, buffers, **batch, **options)
        return out.loss, out

    step = xf.jit(xf.value_and_grad(loss, has_aux=True))
    step.clear_cache()  # It is shared by all steps made by this line.
    (value, out), grads = step(params, batch)
    step(params, batch)
    assert step.cache_info().traces == 1  # A run outside of xfunc may register hooks.
    expected = model(**batch, **options)
    expected.loss.backward()

    assert type(out) is type(expected)
    assert list(out) == list(expected)
    assert_close(value, expected.loss.detach())
    assert_close(dict(out), xf.tree.map(Tensor.detach, dict(expected)))
    assert grads.keys() == dict(model.named_parameters()).keys()
    for n, p in model.named_parameters():
        assert_close(grads[n], torch.zeros_like(p) if p.grad is None else p.grad)


def test_transformers_changed_config_retraces() -> None:
    model = gpt2().eval()
    apply, params, buffers = xf.functional(model)
    run = xf.jit(lambda p: apply(p, buffers, input_ids=IDS, use_cache=False)[0])
    assert run(params).hidden_states is None
    model.config.output_hidden_states = True
    assert len(run(params).hidden_states) == 3
    assert run.cache_info().traces == 2


def test_transformers_hidden_states_after_a_second_trace() -> None:
    model = llama().eval()  # It registers hooks when it is first asked for them.
    apply, params, buffers = xf.functional(model)
    options = {"use_cache": False, "output_hidden_states": True}
    run = xf.jit(lambda p, ids: apply(p, buffers, input_ids=ids, **options)[0])
    for n in (3, 4):
        out = run(params, IDS[:, :n])
        assert len(out.hidden_states) == 3
    assert_close(out.hidden_states, model(input_ids=IDS[:, :4], **options).hidden_states)


def test_transformers_unregistered_cache_is_refused() -> None:
    apply, params, buffers = xf.functional(t5().eval())
    with pytest.raises(
        TypeError,
        match=r"functional\(T5ForConditionalGeneration\) returned an EncoderDecoderCache at "
        rf"output.{CACHE}[\s\S]*\nHint: pass use_cache=False to the model",
    ):
        xf.jit(apply)(params, buffers, **TEXT)


def test_transformers_decoding_with_cache() -> None:
    from transformers.integrations import executorch

    executorch.register_dynamic_cache_export_support()
    model = llama().eval()
    apply, params, buffers = xf.functional(model)

    @xf.jit
    def run(params, ids, cache):
        out, _ = apply(params, buffers, input_ids=ids, use_cache=True, **{CACHE: cache})
        return out.logits, out[CACHE]

    _, cache = run(params, IDS, None)
    expected = model(input_ids=IDS, use_cache=True)
    following = torch.tensor([[7], [8]])
    logits, cache = run(params, following, cache)
    expected = model(input_ids=following, use_cache=True, **{CACHE: expected[CACHE]})
    assert type(cache) is type(expected[CACHE])
    assert_close(logits, expected.logits.detach())


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing_enable.*:FutureWarning")
@pytest.mark.parametrize("name", ["gpt2", "llama", pytest.param("bert", marks=pytest.mark.slow)])
def test_gradient_checkpointing_enable(name: str) -> None:
    make, batch, cached = MODELS[name]
    torch.manual_seed(0)
    model = make().eval()
    options = {"use_cache": False} if cached else {}
    model(**batch, **options).loss.backward()
    model.gradient_checkpointing_enable()
    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    apply, params, buffers = xf.functional(model)
    grads = xf.grad(lambda p: apply(p, buffers, **batch, **options)[0].loss)(params)
    for n, p in model.named_parameters():
        assert_close(grads[n], torch.zeros_like(p) if p.grad is None else p.grad)
