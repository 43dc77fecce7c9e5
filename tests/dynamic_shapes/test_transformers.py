"""Models of transformers, unmodified: one program for all lengths, equal to the exact shapes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch.func import functional_call, grad_and_value

import xfunc as xf

hub: Any = transformers  # Its stubs do not know the keywords of the configurations.

IDS = 64
SMALL: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "attn_implementation": "eager",
}  # fmt: skip
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
TOKENS: dict[str, Any] = {"vocab_size": IDS, "bos_token_id": 0, "eos_token_id": 1}


def llama() -> Any:
    config = hub.LlamaConfig(**SMALL, **TOKENS, num_key_value_heads=2, use_cache=False)
    return hub.LlamaForCausalLM(config)


def gpt2() -> Any:
    config = hub.GPT2Config(
        **TOKENS, n_embd=32, n_layer=2, n_head=4, n_positions=64, use_cache=False,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, attn_implementation="eager",
    )  # fmt: skip
    return hub.GPT2LMHeadModel(config)


def bert() -> Any:
    config = hub.BertConfig(**SMALL, **NO_DROPOUT, vocab_size=IDS)
    return hub.BertForMaskedLM(config)


def t5() -> Any:
    config = hub.T5Config(
        vocab_size=IDS, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, dropout_rate=0.0,
        use_cache=False, decoder_start_token_id=0,
    )  # fmt: skip
    return hub.T5ForConditionalGeneration(config)


def vit() -> Any:
    config = hub.ViTConfig(**SMALL, **NO_DROPOUT, image_size=16, patch_size=4, num_labels=5)
    return hub.ViTForImageClassification(config)


@pytest.mark.sample(5, seed=0)
@pytest.mark.parametrize("make", [llama, gpt2, bert, t5, vit])
def test_transformers_one_program_equals_exact_shapes(make: Any) -> None:
    torch.manual_seed(0)
    model = make().eval().requires_grad_(False)
    parameters = dict(model.named_parameters())
    S = xf.Dim("S", min=2, max=32)

    def loss(parameters: Any, x: Any, y: Any) -> Any:
        given = {"pixel_values" if make is vit else "input_ids": x, "labels": y}
        if make in (llama, gpt2):  # Without a mask, they look for packed sequences in the data.
            given["attention_mask"] = torch.ones_like(x)
        return functional_call(model, parameters, (), given).loss

    def batch(n: int) -> Any:
        if make is vit:
            return torch.randn(n, 3, 16, 16), torch.randint(5, (n,))
        return torch.randint(IDS, (2, n)), torch.randint(IDS, (2, n))

    shapes = (None, (S, None, None, None), (S,)) if make is vit else (None, (None, S), (None, S))
    step = xf.jit(xf.value_and_grad(loss), dynamic_shapes=shapes, buckets=[32])
    before = None
    for n in (13, 2, 3, 8, 31, 32):
        x, y = batch(n)
        value, gradients = step(parameters, x, y)
        expected, expected_value = grad_and_value(loss)(parameters, x, y)
        torch.testing.assert_close(value.cpu(), expected_value, rtol=1e-6, atol=1e-6)
        for name, g in expected.items():
            torch.testing.assert_close(gradients[name].cpu(), g, rtol=2e-5, atol=1e-6)
        before = before or step.cache_info()  # The first call compiles for all.
        assert step.cache_info().traces == before.traces
        assert step.cache_info().compiles == before.compiles
    assert "bucket S<=32: 6 calls, one program" in step.explain()


@pytest.mark.slow
def test_vit_images_of_all_sizes() -> None:
    """The weights of interpolated embeddings are others for each size, in one program.

    Those of the size that the model was made for are not interpolated.
    """
    torch.manual_seed(0)
    model = vit().eval().requires_grad_(False)
    parameters = dict(model.named_parameters())
    S = xf.Dim("S", min=2, max=8)

    def loss(parameters: Any, x: Any, y: Any) -> Any:
        given = {"pixel_values": x, "labels": y, "interpolate_pos_encoding": True}
        return functional_call(model, parameters, (), given).loss

    shapes = (None, (None, None, 4 * S, 4 * S), None)
    step = xf.jit(xf.value_and_grad(loss), dynamic_shapes=shapes, buckets=[8])
    for n in (3, 5, 8, 4, 3):
        x, y = torch.randn(2, 3, 4 * n, 4 * n), torch.randint(5, (2,))
        value, gradients = step(parameters, x, y)
        expected, expected_value = grad_and_value(loss)(parameters, x, y)
        torch.testing.assert_close(value.cpu(), expected_value, rtol=1e-6, atol=1e-6)
        for name, g in expected.items():
            torch.testing.assert_close(gradients[name].cpu(), g, rtol=2e-5, atol=1e-6)
    assert "4 calls, one program" in step.explain(), step.explain()
    assert "S<=4: 1 calls, a program for each exact shape: at S=4," in step.explain()


def _padded_batch(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Two rows of `n` tokens, and a mask that leaves out the end of the second."""
    mask = torch.ones(2, n, dtype=torch.int64)
    mask[1, n - n // 3 :] = 0
    return torch.randint(IDS, (2, n)), mask


@pytest.mark.sample(8, seed=1)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("make", [llama, gpt2, bert, t5])
def test_transformers_padding_mask_plain_jit_and_dim(make: Any, attention: str) -> None:
    """`transformers` must not look at the mask in a trace, whoever calls the model."""
    torch.manual_seed(0)
    model = make().eval().requires_grad_(False)
    model.set_attn_implementation(attention)
    parameters = dict(model.named_parameters())

    def loss(parameters: Any, ids: Any, mask: Any) -> Any:
        given = {"input_ids": ids, "attention_mask": mask, "labels": ids}
        return functional_call(model, parameters, (), given).loss

    S = xf.Dim("S", min=2, max=16)
    dynamic = xf.jit(
        xf.value_and_grad(loss), dynamic_shapes=(None, (None, S), (None, S)), buckets=[16]
    )
    plain = xf.jit(xf.value_and_grad(loss))
    for n in (7, 16, 12):
        ids, mask = _padded_batch(n)
        expected, expected_value = grad_and_value(loss)(parameters, ids, mask)
        for step in (dynamic, plain) if n == 7 else (dynamic,):
            value, gradients = step(parameters, ids, mask)
            torch.testing.assert_close(value.cpu(), expected_value, rtol=1e-6, atol=1e-6)
            for name, g in expected.items():
                torch.testing.assert_close(gradients[name].cpu(), g, rtol=2e-5, atol=1e-6)
    assert "bucket S<=16: 3 calls, one program" in dynamic.explain()


def test_jit_is_compiling_for_torch() -> None:
    def f(x: Any) -> Any:
        return x + 1 if torch.compiler.is_compiling() else x

    assert xf.jit(f)(torch.zeros(())).item() == 1
    assert not torch.compiler.is_compiling()
    with xf.disable_jit():
        assert xf.jit(f)(torch.zeros(())).item() == 0


def test_check_of_all_elements_skips_traced_values() -> None:
    def f(x: Any) -> Any:
        torch._check_tensor_all(x > 0)
        return x

    assert xf.jit(f)(torch.zeros(())).item() == 0
    with pytest.raises(RuntimeError, match="Expected cond to be True"):
        f(torch.zeros(()))
    with pytest.raises(TypeError, match=r"must have dtype torch\.bool"):
        xf.jit(lambda x: torch._check_tensor_all(x))(torch.zeros(()))
