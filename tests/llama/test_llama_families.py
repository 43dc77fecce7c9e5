"""Each family of models against Hugging Face's: values, gradients, text, files."""

import dataclasses
import functools
import json
import re
import shutil
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import xfunc as xf
from examples.llama import config as settings_of_runs
from examples.llama import families, model, train
from examples.llama.data import tokenizer
from examples.llama.families import FAMILIES
from examples.llama.hub import hf
from examples.llama.model import generate
from examples.llama.model.plan import Plan
from examples.llama.model.sizes import Experts
from examples.llama.parallel.sharding import Sharding
from examples.llama.tune import adapters, lora
from tests.llama.hugging_face import by_hub_name

SEQ = 28
SIZES = {
    "vocab_size": 48,
    "hidden_size": 24,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "tie_word_embeddings": False,
    "rope_theta": 100.0,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
GEMMA = {"head_dim": 8, "query_pre_attn_scalar": 12, "sliding_window": 9, "vocab_size": 48}
MOE = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 12}
EXPERTS = {
    "mixtral": {"num_local_experts": 5, "num_experts_per_tok": 2},
    "qwen2_moe": MOE,
    "qwen3_moe": MOE,
    "deepseek_v3": {"num_hidden_layers": 5},
}
SIGMOID = {
    "n_routed_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 12,
    "routed_scaling_factor": 1.7,
    "first_k_dense_replace": 1,
}
LATENT = {
    "model_type": "deepseek_v3",
    "num_key_value_heads": 4,
    "kv_lora_rank": 10,
    "qk_rope_head_dim": 6,
    "qk_nope_head_dim": 4,
    "v_head_dim": 8,
    "n_group": 1,
    "topk_group": 1,
}
CASES: dict[str, dict[str, Any]] = {
    "llama, biases": {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "llama, wide heads": {"model_type": "llama", "head_dim": 10, "hidden_act": "gelu"},
    "llama, linear": {"model_type": "llama", "rope_scaling": {"type": "linear", "factor": 3.0}},
    "llama, dynamic": {
        "model_type": "llama",
        "rope_scaling": {"rope_type": "dynamic", "factor": 2.0},
        "max_position_embeddings": 10,
    },
    "llama, yarn, all of it": {
        "model_type": "llama",
        "rope_scaling": YARN
        | {"beta_fast": 4, "beta_slow": 0.5, "mscale": 0.7, "mscale_all_dim": 0.3}
        | {"truncate": False},
    },
    "mistral": {"model_type": "mistral", "sliding_window": 7},
    "mixtral": {
        "model_type": "mixtral",
        "num_local_experts": 5,
        "num_experts_per_tok": 2,
        "sliding_window": 11,
    },
    "qwen2-moe": MOE
    | {"model_type": "qwen2_moe", "norm_topk_prob": False, "shared_expert_intermediate_size": 16},
    "qwen3-moe": MOE | {"model_type": "qwen3_moe", "norm_topk_prob": True, "head_dim": 8},
    "qwen3-moe, some layers dense": MOE
    | {
        "model_type": "qwen3_moe",
        "head_dim": 8,
        "num_hidden_layers": 4,
        "mlp_only_layers": [1],
        "decoder_sparse_step": 1,
    },
    "qwen2-moe, every second layer dense": MOE
    | {"model_type": "qwen2_moe", "decoder_sparse_step": 2, "num_hidden_layers": 3},
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen2, half local": {
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 6,
        "max_window_layers": 1,
    },
    "qwen3": {"model_type": "qwen3", "head_dim": 8, "rope_scaling": YARN},
    "qwen3, biases": {"model_type": "qwen3", "head_dim": 6, "attention_bias": True},
    "gemma2": GEMMA
    | {"model_type": "gemma2", "attn_logit_softcapping": 0.8, "final_logit_softcapping": 1.5},
    "gemma3": GEMMA
    | {
        "model_type": "gemma3_text",
        "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "rope_local_base_freq": 10.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "tie_word_embeddings": True,
    },
}
CASES |= {
    "gemma": {"model_type": "gemma", "head_dim": 8, "tie_word_embeddings": True},
    "granite": {
        "model_type": "granite",
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.3,
        "attention_multiplier": 0.7,
        "logits_scaling": 2.5,
        "attention_bias": True,
    },
    "olmo2": {"model_type": "olmo2", "rope_scaling": YARN},
    "olmo3": {
        "model_type": "olmo3",
        "num_hidden_layers": 4,
        "sliding_window": 7,
        "rope_scaling": YARN,
    },
    "smollm3": {
        "model_type": "smollm3",
        "num_hidden_layers": 4,
        "no_rope_layers": [1, 0, 0, 1],
        "use_sliding_window": True,
        "sliding_window": 7,
        "layer_types": [f"{kind}_attention" for kind in ("sliding", "full", "sliding", "full")],
    },
    "phi3": {"model_type": "phi3", "sliding_window": 11},
    "phi3, long": {
        "model_type": "phi3",
        "hidden_size": 32,
        "original_max_position_embeddings": 12,
        "rope_scaling": {
            "type": "longrope",
            "short_factor": [1.0, 1.1, 1.3],
            "long_factor": [1.5, 2.0, 4.0],
        },
        "partial_rotary_factor": 0.75,
    },
    "seed_oss": {
        "model_type": "seed_oss",
        "head_dim": 8,
        "mlp_bias": True,
        "attention_dropout": 0.0,
        "residual_dropout": 0.0,
    },
    "ernie4_5": {"model_type": "ernie4_5", "head_dim": 8, "use_bias": True},
    "arcee": {"model_type": "arcee", "mlp_bias": True},
    "glm4_moe": SIGMOID
    | {
        "model_type": "glm4_moe",
        "head_dim": 8,
        "partial_rotary_factor": 0.5,
        "use_qk_norm": True,
        "attention_bias": True,
    },
    "glm4_moe, groups": SIGMOID
    | {
        "model_type": "glm4_moe",
        "num_hidden_layers": 4,
        "first_k_dense_replace": 2,
        "head_dim": 12,
        "n_routed_experts": 8,
        "n_group": 4,
        "topk_group": 2,
        "n_shared_experts": 2,
        "norm_topk_prob": False,
    },
    "deepseek_v3": SIGMOID
    | LATENT
    | {
        "num_hidden_layers": 3,
        "q_lora_rank": 14,
        "attention_bias": True,
        "n_group": 2,
        "topk_group": 1,
        "rope_scaling": YARN | {"mscale": 0.7, "mscale_all_dim": 1.3},
    },
    "deepseek_v3, queries of all features": SIGMOID | LATENT | {"q_lora_rank": None},
    "gpt_oss": {
        "model_type": "gpt_oss",
        "num_local_experts": 5,
        "num_experts_per_tok": 2,
        "head_dim": 8,
        "sliding_window": 7,
        "swiglu_limit": 0.7,
        "rope_scaling": YARN | {"truncate": False},
    },
}


def reference_of(fields: dict[str, Any], folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """A model of transformers with random weights, saved in a folder."""
    import transformers

    settings = transformers.AutoConfig.for_model(**SIZES | fields)
    build: Any = transformers.AutoModelForCausalLM.from_config
    reference = build(settings, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in reference.parameters():
            noise = torch.randn(p.shape, generator=generator)
            p.copy_(p + 0.3 * noise if p.ndim == 1 else noise * p.shape[-1] ** -0.5)
        for name, buffer in reference.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(0.2 * torch.randn(buffer.shape, generator=generator))
    for p in reference.parameters():
        p.data = p.data.to(dtype)
    reference.save_pretrained(folder)
    return reference


def loaded(folder: Path) -> Any:
    import transformers

    load: Any = transformers.AutoModelForCausalLM.from_pretrained
    return load(folder, attn_implementation="eager")


@pytest.mark.parametrize("family", FAMILIES)
def test_hf_config_defaults_match_transformers(family: str, tmp_path: Path) -> None:
    """A file with the sizes alone, and the one that transformers writes of it, with every key."""
    import transformers

    short, full = tmp_path / "short", tmp_path / "full"
    short.mkdir()
    sizes = {name: n for name, n in SIZES.items() if name.endswith(("_size", "_hidden_layers"))}
    sizes |= {"model_type": family, "hidden_size": 128, "num_attention_heads": 32}
    sizes |= EXPERTS.get(family, {})
    (short / "config.json").write_text(json.dumps(sizes))
    transformers.AutoConfig.from_pretrained(short).save_pretrained(full)
    assert len(json.loads((full / "config.json").read_text())) > 2 * len(sizes)
    assert hf.load_config(short) == hf.load_config(full)


def grads_of(reference: Any, known: Container[str]) -> dict[str, torch.Tensor]:
    """By the names that files have: in the module the experts of a layer are one parameter."""
    found = {}
    mixtral = type(reference).__name__.startswith("Mixtral")
    names = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    for name, parameter in reference.named_parameters():
        outer, _, inner = name.partition(".experts.")
        outer = outer.replace(".mlp", ".block_sparse_moe") if mixtral else outer
        if not inner or name in known:
            found[name if inner else outer] = parameter.grad
            continue
        for i, one in enumerate(parameter.grad):
            parts = one.chunk(2) if inner == "gate_up_proj" else [one]
            own = names[:2] if inner == "gate_up_proj" else names[2:]
            for part, part_name in zip(parts, own, strict=True):
                found[f"{outer}.experts.{i}.{part_name}.weight"] = part
    return found


def assert_near(actual: torch.Tensor, expected: torch.Tensor, tolerance: float = 3e-5) -> None:
    """No element differs by more than a share of the largest one."""
    assert actual.shape == expected.shape
    scale = expected.abs().max().item()
    torch.testing.assert_close(actual.float(), expected, rtol=0.0, atol=tolerance * scale)


def routed_in(reference: Any) -> list[Any]:
    """Will have the logits, weights and choices of each router that has sigmoids, once it runs."""
    found: list[Any] = []
    for module in reference.modules():
        if hasattr(module, "e_score_correction_bias"):
            module.register_forward_hook(lambda *call: found.append(call[-1]))
    return found


def balance_of(routed: list[Any]) -> torch.Tensor:
    """The loss for uneven loads, with the shares of experts in the sum of their sigmoids."""
    logits, _, chosen = (torch.cat(parts) for parts in zip(*routed, strict=True))
    shares = logits.sigmoid() / logits.sigmoid().sum(-1, keepdim=True)
    taken = torch.nn.functional.one_hot(chosen, logits.shape[-1]).sum(1).float()
    return (taken.mean(0) * shares.mean(0)).sum() * logits.shape[-1]


@pytest.mark.sample(24, seed=0)
@pytest.mark.parametrize("case", CASES)
def test_family_matches_transformers(case: str, tmp_path: Path) -> None:
    reference = reference_of(CASES[case], tmp_path / "theirs")
    config, params = hf.load(tmp_path / "theirs")
    generator = torch.Generator().manual_seed(1)
    windows = torch.randint(config.vocab, (2, SEQ + 1), generator=generator)
    batch = model.batch_of(windows)
    more = {} if config.experts is None else {"output_router_logits": True}
    routed = routed_in(reference)
    expected = reference(batch.tokens, **more)
    loss = torch.nn.functional.cross_entropy(expected.logits.flatten(0, 1), batch.targets.flatten())
    if config.experts is not None:
        loss = loss + 0.3 * (balance_of(routed) if routed else expected.aux_loss)
        sizes = [logits.logsumexp(-1).square().mean() for logits in expected.router_logits]
        loss = loss + 0.2 * torch.stack(sizes).mean()
    loss.backward()

    @xf.jit
    def run(params: Any, batch: model.Batch) -> Any:
        plan = Plan(block=8)
        logits = model.forward(params, batch.tokens, config, plan)
        routers = model.Routers(balance=0.3, size=0.2)
        loss = functools.partial(model.loss, config=config, plan=plan, routers=routers)
        return logits, xf.value_and_grad(loss)(params, batch)

    logits, (our_loss, grads) = xf.device_get(run(params, batch))
    torch.testing.assert_close(logits, expected.logits.detach(), rtol=1e-5, atol=1e-5)
    assert_near(our_loss, loss.detach())
    found = by_hub_name(config, grads)
    for name in [name for name in found if name.endswith("correction_bias")]:
        assert not found.pop(name).any()
    for name, grad in grads_of(reference, found).items():
        assert_near(found.pop(name), grad)
    assert not found

    # Text, from prompts of several lengths, beyond the windows; as of each prompt alone.
    settings = {"do_sample": False, "max_new_tokens": 8, "pad_token_id": 0}
    prompts = [row[-n:] for row, n in zip(windows[:, :13].tolist(), (13, 4), strict=True)]
    tokens, lengths = generate.pad(prompts, 1)
    made = generate.generate(
        params, tokens, config=config, new=8, lengths=lengths, plan=Plan(block=6)
    )
    for prompt, answer in zip(prompts, xf.device_get(made).tolist(), strict=True):
        fresh = loaded(tmp_path / "theirs")  # Dynamic angles depend on the texts before.
        given = torch.tensor([prompt])
        text = fresh.generate(given, attention_mask=torch.ones_like(given), **settings)
        assert answer == text[0, len(prompt) :].tolist()

    # Files that transformers reads: the same tensors, and logits.
    hf.save(tmp_path / "ours", config, params, context=64)
    theirs, ours = (load_file(tmp_path / name / hf.SINGLE) for name in ("theirs", "ours"))
    assert theirs.keys() == ours.keys()
    assert all(torch.equal(tensor, ours[name]) for name, tensor in theirs.items())
    again = loaded(tmp_path / "ours")
    assert type(again) is type(reference)
    assert_near(again(batch.tokens).logits.detach(), expected.logits.detach(), 1e-6)
    assert hf.load_config(tmp_path / "ours") == config
    assert (
        json.loads((tmp_path / "ours" / "config.json").read_text())["model_type"]
        == (CASES[case]["model_type"])
    )


LR, STEPS = 3e-3, 10


@pytest.mark.sample(8, seed=0)
@pytest.mark.parametrize("case", CASES)
def test_family_learns_as_in_torch(case: str, tmp_path: Path) -> None:
    """The losses of steps of AdamW, the same settings in torch on the model of transformers."""
    reference = reference_of(CASES[case], tmp_path / "theirs").train()
    config, params = hf.load(tmp_path / "theirs")
    generator = torch.Generator().manual_seed(2)
    windows = torch.randint(config.vocab, (STEPS, 2, SEQ + 1), generator=generator)
    expected = []
    adamw = torch.optim.AdamW(reference.parameters(), LR, weight_decay=0.1)
    for rows in windows:
        batch = model.batch_of(rows)
        logits = reference(batch.tokens).logits.flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits, batch.targets.flatten())
        adamw.zero_grad()
        loss.backward()
        adamw.step()
        expected.append(loss.item())

    weights: Any = model.weights(config)
    decayed = xf.tree.map(lambda w: w.kind != "buffer", weights)  # All do there.
    optimizer = xf.optim.adamw(LR, weight_decay=0.1, mask=decayed)

    @xf.jit
    def run(params: Any, windows: torch.Tensor) -> torch.Tensor:
        def step(state: Any, rows: torch.Tensor) -> Any:
            params, moments = state
            batch = model.batch_of(rows)
            loss, grads = xf.value_and_grad(model.loss)(params, batch, config)
            updates, moments = optimizer.update(grads, moments, params)
            return (xf.optim.apply_updates(params, updates), moments), loss

        return xf.scan(step, (params, optimizer.init(params)), windows)[1]

    losses = xf.device_get(run(params, windows))
    torch.testing.assert_close(losses, torch.tensor(expected), rtol=1e-5, atol=1e-5)


def test_family_that_the_readme_registers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A family from outside is read, set and written like the others; here it is one in disguise.

    Its `use_bias` is left out, and its `norm_1` is Qwen's `input_layernorm`.
    """

    page = Path(families.__file__).parents[1] / "fine-tuning.md"
    [code] = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
    monkeypatch.setitem(families.FAMILIES, "acme", families.FAMILIES["llama"])
    del families.FAMILIES["acme"]  # so that there is none after this test, either
    exec(compile(code, str(page), "exec"), {"__name__": "my_llama"})
    hub = tmp_path / "hub"
    reference = reference_of(CASES["qwen3"] | {"num_key_value_heads": 4}, hub)
    fields = json.loads((hub / "config.json").read_text())
    for key in ("use_sliding_window", "sliding_window", "max_window_layers", "layer_types"):
        del fields[key]
    (hub / "config.json").write_text(json.dumps(fields | {"model_type": "acme"}))
    stored = {
        name.replace(".input_layernorm.", ".norm_1."): tensor
        for name, tensor in load_file(hub / hf.SINGLE).items()
    }
    save_file(stored, hub / hf.SINGLE)

    config, params = hf.load(hub)
    assert settings_of_runs.read(pairs=["train.model.family=acme"]).train.model.family == "acme"
    tokens = torch.randint(config.vocab, (2, SEQ))
    assert_near(model.forward(params, tokens, config), reference(tokens).logits.detach())
    hf.save(tmp_path / "out", config, params)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["use_bias"] is False
    written = load_file(tmp_path / "out" / hf.SINGLE)
    assert written.keys() == stored.keys()
    assert all(torch.equal(written[name], tensor) for name, tensor in stored.items())
    with pytest.raises(ValueError, match=r"a family 'acme' already: give another name"):
        families.register("acme", families.FAMILIES["llama"])


def test_adapters_of_weights_in_one_tensor_raise() -> None:
    config = dataclasses.replace(model.TINY["tiny"], family="phi3")
    with pytest.raises(hf.FormatError, match=r"layers\.wq: only linear .* export merged weights"):
        adapters.modules(config, ["layers.wq", "layers.wo"])


@pytest.mark.parametrize(
    "settings",
    [
        "train.optimizer=adafactor train.precision=stochastic train.plan.microbatches=2",
        "train.optimizer=muon train.router_balance=0.1",
        "train.tune.lora=[layers*.w*,layers*.e_*,layers*.router]",
    ],
)
def test_bias_of_the_choice_is_not_trained(
    settings: str, tmp_path: Path, made: Path, command: Callable[..., tuple[int, str]]
) -> None:
    """It is exported in float32, to the bit, beside weights in bfloat16 that are trained."""
    fields = SIGMOID | LATENT | {"vocab_size": 290, "hidden_size": 32, "num_hidden_layers": 3}
    fields |= {"intermediate_size": 32, "moe_intermediate_size": 16, "q_lora_rank": 16}
    fields |= {"kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8}
    hub, out = tmp_path / "hub", tmp_path / "out"
    reference_of(fields, hub, torch.bfloat16)
    for file in tokenizer.load(made).files:
        shutil.copy(file, hub)
    run = tmp_path / "run"
    pairs = f"folder={run} data.files={made / 'text.jsonl'} data.seq=16 data.batch=4 "
    pairs += f"train.steps=3 train.warmup=1 save_every=3 eval_every=3 train.peak_lr=0.1 {settings}"
    for args in (
        ["import-hf", hub, *pairs.split()],
        ["fit", "--config", run / "config.yaml"],
        ["export-hf", run, "--out", out, "--dtype", "bfloat16"],
        ["generate", run, "--prompt", "is it", "--new", "3"],
    ):
        status, said = command(*args)
        assert not status, said
    before, after = load_file(hub / hf.SINGLE), load_file(out / hf.SINGLE)
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        is_bias = name.endswith("e_score_correction_bias")
        assert after[name].dtype == (torch.float32 if is_bias else torch.bfloat16)
        if is_bias or name.endswith("o_proj.weight"):
            assert torch.equal(tensor, after[name]) == is_bias
    loaded(out)


@pytest.mark.parametrize("parts", [1, 2])
def test_bias_of_the_choice_evens_loads(parts: int, tmp_path: Path) -> None:
    """By the loads of transformers' routers."""
    fields = SIGMOID | {"model_type": "glm4_moe", "num_hidden_layers": 3, "head_dim": 8}
    reference = reference_of(fields, tmp_path)
    config, params = hf.load(tmp_path)
    batch = model.batch_of(torch.randint(config.vocab, (2, SEQ + 1)))
    routed = routed_in(reference)
    reference(batch.tokens)
    plan = Plan(microbatches=parts, sharding=Sharding.of({}))
    recipe = train.Recipe(config, 10, plan, warmup=1, router_bias=0.01)
    state = train.start(recipe, xf.device_put(params))
    state, _ = train.train_step(state, batch, recipe=recipe)
    found = xf.device_get(state.params["layers_1"]["choice_bias"])
    for i, (_, _, chosen) in enumerate(routed):
        taken = torch.nn.functional.one_hot(chosen, 6).sum((0, 1)).float()
        expected = params["layers_1"]["choice_bias"][i] + 0.01 * (taken.mean() - taken).sign()
        torch.testing.assert_close(found[i], expected, rtol=0, atol=1e-7)
    with pytest.raises(ValueError, match=r"family llama have no bias in the choice of experts"):
        train.Recipe(model.TINY["tiny"], 10, router_bias=0.01)


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
@pytest.mark.parametrize("family", ["glm4_moe", "deepseek_v3"])
def test_adapters_of_layers_of_two_kinds_match_peft(family: str, tmp_path: Path) -> None:
    """Theirs here, and ours there."""
    reference_of(CASES[family], tmp_path / "hub")
    load: Any = transformers.AutoModelForCausalLM.from_pretrained
    about: Any = peft.LoraConfig(r=3, target_modules=["o_proj"], task_type="CAUSAL_LM")
    theirs: Any = peft.get_peft_model(load(tmp_path / "hub", dtype=torch.float32), about)
    for name, weight in theirs.named_parameters():
        if "lora_B" in name:
            weight.data.normal_(0, 0.1)
    theirs.save_pretrained(tmp_path / "theirs")
    config, every = hf.load(tmp_path / "hub", torch.float32)
    tune, params = adapters.load(tmp_path / "theirs", config)
    assert [*tune.lora] == [f"{stack.name}.wo" for stack in config.stacks]
    assert len(config.stacks) == 2
    check = torch.randint(config.vocab, (2, SEQ))
    with xf.disable_jit(), torch.no_grad():
        expected = theirs(check).logits
        joined = lora.join(params, lora.frozen(every, config, tune), tune)
        actual = model.forward(joined, check, config)
        torch.testing.assert_close(actual, expected, rtol=0.0, atol=1e-5)
        assert (actual - model.forward(every, check, config)).abs().max() > 0.01
        adapters.save(tmp_path / "ours", params, config, tune, "hub")
        plain = load(tmp_path / "hub", dtype=torch.float32)
        again: Any = peft.PeftModel.from_pretrained(plain, tmp_path / "ours")
        torch.testing.assert_close(again(check).logits, expected, rtol=0.0, atol=1e-5)


def test_layers_for_later_tokens_are_left_out(tmp_path: Path) -> None:
    reference_of(CASES["glm4_moe"], tmp_path)
    path, file = tmp_path / "config.json", tmp_path / hf.SINGLE
    config, params = hf.load(tmp_path)
    extra = {f"model.layers.2.{name}.weight": torch.ones(3) for name in ("eh_proj", "enorm")}
    save_file(load_file(file) | extra, file)
    fields = json.loads(path.read_text())
    path.write_text(json.dumps(fields | {"num_nextn_predict_layers": 1}))
    assert hf.left_out(tmp_path) == [*extra]
    assert hf.load(tmp_path)[0] == config
    assert all(xf.tree.leaves(xf.tree.map(torch.equal, hf.load(tmp_path)[1], params)))
    path.write_text(json.dumps(fields | {"num_nextn_predict_layers": 0}))
    with pytest.raises(hf.FormatError, match=r"layers\.2\.enorm\.weight: not a tensor of this"):
        hf.load(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_group": 4}, r"count is 6, groups is 4, .*: make groups of equal sizes, of 2 experts"),
        (
            {"n_group": 3, "num_experts_per_tok": 3},
            r"active is 3, but 1 groups have 2 experts: ",
        ),
        ({"v_head_dim": 12}, r"values is 12, rotary and plain 10 together: give values no more"),
        ({"scoring_func": "softmax"}, r"has scoring_func 'softmax', but the model only supports"),
        ({"topk_method": "greedy"}, r"has topk_method 'greedy', but the model only supports 'noau"),
        ({"rope_interleave": False}, r"has rope_interleave False, but the model only supports Tru"),
    ],
    ids=str,
)
def test_deepseek_unsupported_settings_raise(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SIZES | SIGMOID | LATENT | change))
    with pytest.raises(hf.FormatError, match=message):
        hf.load_config(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dense_layers": (0, 1)}, r"dense_layers has all layers: leave out experts, or some"),
        ({"dense_layers": (2,)}, r"dense_layers has \[2\], but there are 2 layers"),
        ({"latent": model.Latent()}, r"latent is given: make kv_heads equal to heads, and leave"),
    ],
    ids=str,
)
def test_sizes_of_stacks_and_latents_raise(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(model.TINY["tiny"], experts=Experts(4, 2, 8), **change)


def test_sinks_with_other_attention_raise() -> None:
    config = dataclasses.replace(model.TINY["tiny"], family="gpt_oss", experts=Experts(4, 2, 8))
    tokens = torch.zeros(1, 8, dtype=torch.long)
    with pytest.raises(ValueError, match=r"'splash': of models with .* sinks use 'blockwise' or"):
        model.forward(model.init(config), tokens, config, Plan(attention="splash"))


OUTER = {
    "gemma3": GEMMA | {"model_type": "gemma3_text", "num_hidden_layers": 3},
    "mistral3": {"model_type": "mistral", "sliding_window": 7, "head_dim": 6},
}
VISION = {
    "gemma3": {"model_type": "siglip_vision_model"},
    "mistral3": {"model_type": "pixtral"},
}
IMAGES = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
IMAGES |= {"num_attention_heads": 2, "image_size": 28, "patch_size": 14}


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
@pytest.mark.parametrize("outer", OUTER)
def test_text_part_of_a_larger_model(
    outer: str, prefix: str, tmp_path: Path, command: Callable[..., tuple[int, str]]
) -> None:
    import transformers

    settings = transformers.AutoConfig.for_model(
        outer,
        text_config=SIZES | OUTER[outer],
        vision_config=IMAGES | VISION[outer],
        tie_word_embeddings=outer == "gemma3",
        **({"mm_tokens_per_image": 4} if outer == "gemma3" else {}),
    )
    torch.manual_seed(0)
    build: Any = transformers.AutoModelForImageTextToText.from_config
    reference = build(settings, attn_implementation="eager").eval()
    hub, file = tmp_path / "hub", tmp_path / "hub" / hf.SINGLE
    reference.save_pretrained(hub)
    moved = {"language_model.model.": prefix, "language_model.lm_head.": "lm_head."}
    if prefix == "language_model.model.":
        moved = {}
    stored = {}
    for name, tensor in load_file(file).items():
        old = next((old for old in moved if name.startswith(old)), "")
        stored[moved.get(old, "") + name.removeprefix(old)] = tensor
    save_file(stored, file)
    assert any(name.startswith(prefix) for name in stored)

    config, params = hf.load(hub)
    tokens = torch.randint(config.vocab, (2, SEQ))
    expected = reference(tokens).logits.detach()
    assert_near(model.forward(params, tokens, config), expected)
    hf.save(tmp_path / "out", config, params)
    again = loaded(tmp_path / "out")
    assert again.config.model_type == OUTER[outer]["model_type"]
    assert_near(again(tokens).logits.detach(), expected, 1e-6)
    ignored = hf.left_out(hub)
    assert {name.removeprefix("model.").partition(".")[0] for name in ignored} == {
        "vision_tower",
        "multi_modal_projector",
    }
    ours = {name.removeprefix("model."): one for name, one in by_hub_name(config, params).items()}
    text = {name: tensor for name, tensor in stored.items() if name not in ignored}
    assert len(ours) == len(text)
    for name, tensor in text.items():
        assert torch.equal(ours[re.sub(r"^(model\.|language_model\.)+", "", name)], tensor)
    sharded = xf.tree.map(
        lambda _: xf.NamedSharding(xf.make_mesh((1,), ("x",)), xf.P()), model.shapes(config)
    )
    on_device = xf.device_get(hf.load(hub, shardings=sharded)[1])
    assert all(xf.tree.leaves(xf.tree.map(torch.equal, on_device, params)))
    if outer == "gemma3":
        status, output = command("import-hf", hub, f"folder={tmp_path / 'run'}")
        assert not status
        said = rf"only the text model is imported, without .* and {len(ignored) - 1} more"
        assert re.search(said, output)
