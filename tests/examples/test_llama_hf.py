"""The model against Hugging Face's, and its weights in Hugging Face's files."""

import dataclasses
import json
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import xfunc as xf
from examples.llama import documents, generate, hf, model, tokenizer

CONFIGS = model.TINY | {
    "one-kv-head": model.Config(
        40, hidden=30, intermediate=28, layers=1, heads=5, kv_heads=1, rope_theta=1e4, norm_eps=1e-6
    ),
    "scaled-tied": model.Config(
        48,
        hidden=32,
        intermediate=24,
        layers=2,
        heads=8,
        kv_heads=4,
        tied=True,
        rope_theta=100.0,
        rope_scaling=model.RopeScaling(4.0, 2.0, 3.0, original_context=24),
    ),
}
SEQ = 40


@pytest.fixture(params=list(CONFIGS.values()), ids=list(CONFIGS))
def config(request: pytest.FixtureRequest) -> model.Config:
    return request.param


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "weights"


def random_params(config: model.Config, dtype: torch.dtype = torch.float32) -> model.Params:
    generator = torch.Generator().manual_seed(0)

    def leaf(shape: xf.ShapeDtypeStruct) -> torch.Tensor:
        x = torch.randn(shape.shape, generator=generator, dtype=torch.float64)
        return (x * shape.shape[-1] ** -0.5).to(dtype)

    params = xf.tree.map(leaf, model.shapes(config))
    layers = params["layers"]
    for tree, name in (params, "norm"), (layers, "attn_norm"), (layers, "mlp_norm"):
        tree[name] = 1 + tree[name]
    return params


def tokens_of(config: model.Config, batch: int = 2, length: int = SEQ + 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(config.vocab, (batch, length), generator=generator)


def theirs(folder: Path, dtype: torch.dtype = torch.float32, attention: str = "sdpa") -> Any:
    import transformers

    load: Any = transformers.AutoModelForCausalLM.from_pretrained
    return load(folder, dtype=dtype, attn_implementation=attention)


def by_hub_name(config: model.Config, params: model.Params) -> dict[str, torch.Tensor]:
    """The same weights as in `LlamaForCausalLM.named_parameters`."""
    named = dict(xf.tree.leaves_with_path(hf.hub_names(config)))
    found = {}
    for path, weight in xf.tree.leaves_with_path(xf.device_get(params)):
        name = named[path]
        stack = enumerate(weight) if "{}" in name else [(0, weight)]
        found |= {name.format(i): one for i, one in stack}
    return found


def assert_near(actual: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    """No element differs by more than a share of the largest one."""
    assert actual.shape == expected.shape
    scale = expected.abs().max().item()
    torch.testing.assert_close(actual.double(), expected.double(), rtol=0.0, atol=tolerance * scale)


# The model


def test_equal_in_float64(config: model.Config, folder: Path) -> None:
    """Given the same rotary tables, which both find in float32, nothing is left but rounding."""
    params = random_params(config, torch.float64)
    hf.save(folder, config, params)
    reference = theirs(folder, torch.float64)
    windows = tokens_of(config)
    batch = model.batch_of(windows)
    cos, sin = model.rotary(torch.arange(SEQ), config)
    tables = cos[None].double(), sin[None].double()
    reference.model.rotary_emb.forward = lambda *_args, **_kwargs: tables
    logits = reference(batch.tokens).logits
    loss = F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())
    loss.backward()

    with xf.disable_jit():
        ours = model.forward(params, batch.tokens, config)
        our_loss, grads = xf.value_and_grad(model.loss)(params, batch, config)
    assert_near(ours, logits.detach(), 1e-12)
    assert_near(our_loss, loss.detach(), 1e-12)
    found = by_hub_name(config, grads)
    for name, parameter in reference.named_parameters():
        assert_near(found.pop(name), parameter.grad, 1e-9)
    assert not found


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 2e-6), (torch.float32, 2e-5)])
def test_compiled_is_near(
    config: model.Config, folder: Path, dtype: torch.dtype, tolerance: float
) -> None:
    """They find norms, softmax, rotary tables and the loss in float32, whatever the weights are."""
    params = random_params(config, dtype)
    hf.save(folder, config, params)
    reference = theirs(folder, dtype, attention="eager")
    windows = tokens_of(config)
    expected = reference(windows, labels=windows)
    expected.loss.backward()

    @xf.jit
    def run(params: Any, windows: Any) -> Any:
        batch = model.batch_of(windows)
        logits = model.forward(params, batch.tokens, config)
        return logits, xf.value_and_grad(model.loss)(params, batch, config)

    logits, (loss, grads) = xf.device_get(run(params, windows))
    assert logits.dtype == dtype
    assert_near(logits, expected.logits[:, :-1].detach(), tolerance)
    assert_near(loss, expected.loss.detach(), tolerance)
    found = by_hub_name(config, grads)
    for name, parameter in reference.named_parameters():
        assert_near(found.pop(name), parameter.grad, tolerance)
    assert not found


@pytest.mark.parametrize("name", [*CONFIGS, *model.PUBLISHED])
def test_rotary_frequencies(name: str) -> None:
    from transformers.models.llama import configuration_llama, modeling_llama

    config = (CONFIGS | model.PUBLISHED)[name]
    fields = hf.config_json(config, torch.float32, context=131072)
    settings = configuration_llama.LlamaConfig.from_dict(fields)
    expected = modeling_llama.LlamaRotaryEmbedding(settings).inv_freq
    cos, sin = model.rotary(torch.tensor([1]), config)
    torch.testing.assert_close(torch.atan2(sin, cos)[0], expected.repeat(2), rtol=1e-6, atol=0.0)


def test_scaling_matters_at_the_length_of_these_tests(config: model.Config) -> None:
    plain = dataclasses.replace(config, rope_scaling=None)
    with xf.disable_jit():
        params, tokens = random_params(config), tokens_of(config)
        with_it, without = (model.forward(params, tokens, c) for c in (config, plain))
    difference = (with_it - without).abs().max()
    assert (difference > 0.01) == (config.rope_scaling is not None)


def test_greedy_tokens(config: model.Config, folder: Path) -> None:
    params = random_params(config, torch.float64)
    hf.save(folder, config, params)
    lengths = torch.tensor([9, 5, 1])
    prompt, mask = tokens_of(config, 3, 9), torch.arange(9) >= 9 - lengths[:, None]
    settings = {"do_sample": False, "max_new_tokens": 12, "pad_token_id": 0}
    expected = theirs(folder, torch.float64).generate(
        prompt * mask, attention_mask=mask.long(), **settings
    )
    found = generate.generate(
        params, prompt * mask, xf.random.key(0), config=config, new=12, lengths=lengths
    )
    assert xf.device_get(found).tolist() == expected[:, 9:].tolist()


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
}


@pytest.mark.parametrize("name", model.PUBLISHED)
def test_published_numbers(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SHARED | PUBLISHED[name]))
    assert hf.load_config(tmp_path) == model.PUBLISHED[name]


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
def test_number_of_parameters(name: str, count: int) -> None:
    """Those that the hub says."""
    leaves = xf.tree.leaves(model.shapes(model.PUBLISHED[name]))
    assert sum(torch.Size(leaf.shape).numel() for leaf in leaves) == count


# Files


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_round_trip(config: model.Config, folder: Path, dtype: torch.dtype) -> None:
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


def assert_equal(actual: Any, expected: Any) -> None:
    xf.tree.map(lambda a, e: torch.testing.assert_close(a, e, rtol=0, atol=0), actual, expected)


def test_loads_what_transformers_saves(config: model.Config, folder: Path) -> None:
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


def test_both_spellings_of_the_rotary_angles(folder: Path) -> None:
    config = CONFIGS["scaled-tied"]
    older = hf.config_json(config, torch.float32, context=512)
    theta, scaling = older.pop("rope_theta"), older.pop("rope_scaling")
    folder.mkdir()
    (folder / "config.json").write_text(
        json.dumps(older | {"rope_parameters": {"rope_theta": theta} | scaling})
    )
    assert hf.load_config(folder) == config


def test_fields_left_out_have_the_defaults_of_transformers(folder: Path) -> None:
    sizes = "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads"
    fields = {"model_type": "llama"} | dict.fromkeys(sizes.split(), 8) | {"hidden_size": 16}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(fields))
    assert hf.load_config(folder) == model.Config(
        8, 16, 8, 8, heads=8, kv_heads=8, rope_theta=10000.0, norm_eps=1e-6
    )


def test_one_tensor_at_a_time_is_on_the_host(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_saves_from_the_device(folder: Path) -> None:
    config = model.TINY["tiny"]
    params = random_params(config)
    hf.save(folder, config, xf.device_put(params))
    assert_equal(hf.load(folder)[1], params)


def test_tokenizer_comes_along(folder: Path, tmp_path: Path) -> None:
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


# Errors


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
    "some layers without experts": (
        lambda f: edit_config(
            f, model_type="qwen3_moe", num_experts=4, num_experts_per_tok=2, mlp_only_layers=[1]
        ),
        r"has mlp_only_layers \[1\], but the model only supports \[\]",
    ),
    "quantized": (
        lambda f: edit_config(f, quantization_config={"quant_method": "fp8"}),
        r"has quantization_config \{'quant_method': 'fp8'\}, but only codes of bitsandbytes are",
    ),
    "rotary angles": (
        lambda f: edit_config(f, rope_scaling={"type": "longrope", "factor": 2.0}),
        r"has rope_scaling.type 'longrope', but the model only supports 'default', 'llama3', "
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
    "an index of no files": (
        lambda f: (f / hf.INDEX).write_text('{"weight_map": ["model.safetensors"]}'),
        r"index.json is damaged \(its weight_map names no files\): download it again",
    ),
    "cut off": (cut_off, r"model.safetensors is damaged \(.*\): download it again"),
}


@pytest.mark.parametrize("case", WRONG)
def test_error(case: str, folder: Path) -> None:
    spoil, message = WRONG[case]
    hf.save(folder, config := model.TINY["tiny"], random_params(config))
    spoil(folder)
    with pytest.raises(hf.FormatError, match=message):
        hf.load(folder)


def test_what_older_files_hold_beside_the_weights(folder: Path) -> None:
    config = model.TINY["tiny-tied"]
    params = random_params(config)
    hf.save(folder, config, params)
    more = {
        "lm_head.weight": params["embed"].clone(),
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4),
    }
    edit_tensors(folder, lambda tensors: tensors.update(more))
    assert_equal(hf.load(folder)[1], params)


def test_missing_files(folder: Path) -> None:
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


def test_a_save_that_fails_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
