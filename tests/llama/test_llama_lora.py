"""Adapters match PEFT's, are trained in runs, and raise errors where they do not fit."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from bitsandbytes import functional
from safetensors.torch import load_file, save_file

import xfunc as xf
from examples.llama import config, model, train
from examples.llama.checkpoint import trained_weights
from examples.llama.checkpoint.checkpoints import Checkpoints
from examples.llama.config import Run
from examples.llama.hub import hf
from examples.llama.hub.hf_config import FormatError
from examples.llama.model import flops
from examples.llama.model.plan import Plan
from examples.llama.options import SettingError
from examples.llama.parallel.sharding import Sharding
from examples.llama.train import fit
from examples.llama.train.train_config import Recipe
from examples.llama.tune import adapters, base_weights, lora
from examples.llama.tune.lora import Tune
from tests.llama.beside_peft import assert_equal, train_beside
from xfunc import P

pytestmark = [  # of peft 0.21 with transformers 5.23
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Setting .save_embedding_layers:UserWarning"),
]

SIZES = model.Config(64, 64, 128, layers=2, heads=4, kv_heads=2, rope_theta=1e4, norm_eps=1e-6)


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of transformers."""
    folder = tmp_path_factory.mktemp("hub") / "model"
    sizes = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(sizes).save_pretrained(folder)
    return folder


def in_peft(hub: Path, folder: Path) -> Any:
    theirs = transformers.LlamaForCausalLM.from_pretrained(hub, dtype=torch.float32)
    return peft.PeftModel.from_pretrained(theirs, folder)


def of_peft(hub: Path, folder: Path, **options: Any) -> Any:
    """A model with random adapters, saved in `folder`."""
    made: Any = peft.LoraConfig(r=4, lora_alpha=8, task_type="CAUSAL_LM", **options)
    theirs: Any = transformers.LlamaForCausalLM.from_pretrained(hub, dtype=torch.float32)
    theirs = peft.get_peft_model(theirs, made)
    generator = torch.Generator().manual_seed(0)
    for name, weight in theirs.named_parameters():
        if "lora_B" in name:
            weight.data.normal_(0, 0.05, generator=generator)
    theirs.save_pretrained(folder)
    return theirs


def rounded_to_nf4(theirs: Any) -> Any:
    """The model, with its maps as bitsandbytes rounds them."""
    for name, weight in theirs.named_parameters():
        if weight.ndim == 2 and "lora" not in name and "embed" not in name:
            weight.data = functional.dequantize_4bit(
                *functional.quantize_4bit(weight.data, blocksize=64, quant_type="nf4")
            )
    return theirs


def tokens(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(SIZES.vocab, (4, 17), generator=generator)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["null", "nf4"])
def test_lora_training_matches_peft(hub: Path, tmp_path: Path, form: str) -> None:
    """Adapters of PEFT are read, trained on as PEFT does, written, and read by PEFT."""
    rounded = rounded_to_nf4 if form == "nf4" else lambda theirs: theirs
    theirs = of_peft(
        hub,
        tmp_path / "theirs",
        target_modules=["q_proj", "v_proj", "down_proj", "lm_head"],
        modules_to_save=["model.norm"],
    )
    rounded(theirs)
    pairs = "train.steps=60 train.warmup=1 train.schedule=constant train.peak_lr=1e-2".split()
    more = ["train.clip=1e9", "train.weight_decay=0", "train.plan.attention=dense"]
    more += [f"train.tune.base={form}"]
    found = trained_weights.load_published(
        hub, None, [*pairs, *more], config.TUNING, tmp_path / "theirs"
    )
    recipe, before = found.recipe, xf.device_get(found.base)
    names = ("layers.wq", "layers.wv", "layers.w_down", "head")
    kept = "nf4" if form == "nf4" else None
    assert recipe.tune == Tune(names, ("norm",), rank=4, alpha=8.0, base=kept)
    state = train.start(recipe, found.params)
    assert sorted(lora.named(state.opt[0].mu)) == sorted([*names, "norm"])
    assert found.base is not None
    assert sorted(lora.named(found.base)) == sorted({*lora.named(model.shapes(SIZES))} - {"norm"})
    rows = map(tokens, range(50))
    state, _ = train_beside(theirs, state, found.base, recipe, rows, lr=1e-2)
    assert_equal(found.base, before)
    after = found._replace(params=state.params)
    trained_weights.export_adapters(after, tmp_path / "ours")
    check = tokens(99)
    with torch.no_grad():
        expected = rounded(in_peft(hub, tmp_path / "ours"))(check).logits
    ours = xf.jit(lambda params: model.forward(params, check, SIZES))(after.computing())
    torch.testing.assert_close(ours.cpu(), expected, rtol=0.0, atol=1e-5)
    again = adapters.load(tmp_path / "ours", SIZES)
    assert again[0] == dataclasses.replace(recipe.tune, base=None)  # Not PEFT's to say.
    assert_equal(again[1], state.params)


@pytest.mark.parametrize(
    "options",
    [
        {"target_modules": "all-linear", "use_rslora": True},
        {"target_modules": ["o_proj"], "modules_to_save": ["embed_tokens", "lm_head"]},
    ],
    ids=["rank-stabilised", "embeddings"],
)
def test_lora_logits_match_peft(hub: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    theirs = of_peft(hub, tmp_path / "theirs", **options)
    tune, params = adapters.load(tmp_path / "theirs", SIZES)
    _, every = hf.load(hub)
    check = tokens(7)
    with xf.disable_jit(), torch.no_grad():
        joined = lora.join(params, lora.frozen(every, SIZES, tune), tune)
        for found in (joined, lora.merged(joined, torch.float32)):
            expected = theirs(check).logits
            actual = model.forward(found, check, SIZES)
            torch.testing.assert_close(actual, expected, rtol=0.0, atol=1e-5)
        adapters.save(tmp_path / "ours", params, SIZES, tune, str(hub))
        torch.testing.assert_close(
            in_peft(hub, tmp_path / "ours")(check).logits, expected, rtol=0.0, atol=1e-5
        )


@pytest.mark.parametrize("pairs", [False, True])
def test_flops_of_tuning_match_cost_analysis(pairs: bool) -> None:
    sizes = model.Config(2048, 512, 1408, layers=2, heads=4, kv_heads=2)
    plan, rows, seq = Plan(policy="everything", attention="dense", loss_chunk=512), 2, 256
    tune = Tune(("layers.w*",), ("head",), rank=1)
    recipe = Recipe(sizes, 100, plan, tune=tune, pairs=pairs)
    every = model.shapes(sizes, torch.float32)
    params = lora.trained(every, sizes, tune, lora.abstract(tune))
    frozen = lora.frozen(every, sizes, tune, whole=pairs)
    tokens: Any = xf.ShapeDtypeStruct((rows, seq), torch.int64)
    lowered = xf.jit(lambda p, b, f: train.gradient(p, b, recipe, f)).lower(
        params, model.Batch(tokens, tokens, tokens), frozen
    )
    found = lowered.cost_analysis()["flops"] / (rows * seq)
    assert 0.1 < recipe.extent.learned < 0.3
    # Twice the length: the program computes the whole square of scores.
    expected = flops.per_token(sizes, 2 * seq, recipe.extent)
    assert found == pytest.approx(expected, rel=0.02)


def test_gradient_of_frozen_weight_is_not_computed() -> None:
    sizes = model.Config(64, hidden=32, intermediate=48, layers=2, heads=4, kv_heads=2)
    for name, made in (("layers.w_up", True), ("layers.wq", False)):
        recipe = Recipe(sizes, 10, Plan(attention="dense"), tune=Tune(full=(name,)), warmup=1)
        every = model.shapes(sizes, torch.float32)
        params = lora.trained(every, sizes, recipe.tune, lora.abstract(recipe.tune))
        frozen = lora.frozen(every, sizes, recipe.tune)
        leaf: Any = xf.ShapeDtypeStruct((2, 8), torch.int64)
        lowered = xf.jit(lambda p, b, f, r=recipe: train.gradient(p, b, r, f)).lower(
            params, model.Batch(leaf, leaf), frozen
        )
        products = [line for line in lowered.as_text().splitlines() if "dot" in line]
        of_weights = [line for line in products if "48,32]" in line.split("dot")[0]]
        assert bool(of_weights) == made


def test_adapters_are_sharded_like_their_weights() -> None:
    plan = Plan(sharding=Sharding.of({"fsdp": 4, "tensor": 2}, abstract=True))
    recipe = Recipe(SIZES, 10, plan, tune=Tune(("layers.wq", "layers.wo", "head"), rank=4))
    state: Any = train.abstract_state(recipe)
    frozen = train.abstract_base(recipe)
    parts = ("fsdp", "expert", "context")
    specs = xf.tree.map(lambda a: a.sharding.spec, state.params)
    assert tuple(specs["layers"]["wq"]) == (P(None, None, parts), P(None, "tensor", None))
    assert tuple(specs["layers"]["wo"]) == (P(None, None, "tensor"), P(None, parts, None))
    assert tuple(specs["head"]) == (P(None, parts), P("tensor", None))
    assert xf.tree.map(lambda a: a.sharding.spec, state.opt[0].mu) == specs
    assert frozen is not None
    assert frozen["layers"]["wq"].sharding.spec == P(None, "tensor", parts)


# -- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tune", "message"),
    [
        ({"lora": ("layers.q",)}, r"tune: 'layers\.q' names no weight: use some of embed, layers"),
        ({"lora": ("embed",)}, "tune: embed: adapters are for matrices only"),
        ({"lora": ("layers.*_norm",)}, r"layers\.attn_norm, layers\.mlp_norm: adapters are for"),
        ({"lora": ("layers.wq",), "full": ("layers.*",)}, r"layers\.wq: both in lora and in full"),
        ({"full": ()}, "tune: nothing is trained: name weights in lora or full"),
        ({"rank": 0}, "rank is 0: use 1 or more"),
        ({"alpha": float("nan")}, "alpha is nan: use a number above 0"),
    ],
)
def test_tune_wrong_settings_raise(tune: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Recipe(SIZES, 10, tune=Tune(**tune))


def changed(folder: Path, **values: Any) -> None:
    file = folder / adapters.CONFIG
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def renamed(folder: Path, old: str, new: str) -> None:
    file = folder / adapters.TENSORS
    save_file({k.replace(old, new): v for k, v in load_file(file).items()}, file)


def converted(folder: Path, dtype: torch.dtype) -> None:
    file = folder / adapters.TENSORS
    save_file({k: v.to(dtype) for k, v in load_file(file).items()}, file)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: changed(f, use_dora=True), "adapter_config.json has use_dora True: give adap"),
        (lambda f: changed(f, r=8), r"lora_A.weight: \(4, 64\) in the file, \(8, 64\) by adapter"),
        (lambda f: changed(f, lora_alpha=None), "adapter_config.json is damaged .*: copy it again"),
        (
            lambda f: renamed(f, "layers.1", "layers.2"),
            r"layers\.1\.self_attn\.q_proj\.lora_A.*missing",
        ),
        (lambda f: renamed(f, "q_proj", "c_attn"), "it has no adapter of this model. Give others"),
        (lambda f: (f / adapters.TENSORS).write_bytes(b"x"), "safetensors is damaged .*: copy it"),
        (lambda f: converted(f, torch.int8), r"lora_A\.weight: torch\.int8, which is not a dtype"),
        (lambda f: converted(f, torch.float8_e5m2), r"weight: torch\.float8_e5m2, which is not"),
    ],
    ids=["dora", "rank", "alpha", "layer", "module", "file", "integers", "codes"],
)
def test_adapters_load_of_wrong_files_raises(
    tmp_path: Path, damage: Callable[[Path], object], message: str
) -> None:
    tune = Tune(("layers.wq",), rank=4)
    shapes = lora.trained(model.shapes(SIZES), SIZES, tune, lora.abstract(tune))
    params = xf.tree.map(lambda a: torch.zeros(a.shape), shapes)
    adapters.save(tmp_path / "a", params, SIZES, tune, "hub")
    damage(tmp_path / "a")
    with pytest.raises(FormatError, match=message):
        adapters.load(tmp_path / "a", SIZES)
    with pytest.raises(FileExistsError, match=r"/a already exists"):
        adapters.save(tmp_path / "a", params, SIZES, tune, "hub")
    with pytest.raises(FileNotFoundError, match=r"there is no .*b/adapter_config\.json"):
        adapters.load(tmp_path / "b", SIZES)


# -- runs -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_tuned_run_refers_to_its_base(
    run_of: Callable[..., Run], settings: Callable[..., list[str]], tmp_path: Path
) -> None:
    hub, again = tmp_path / "hub", tmp_path / "again"
    first = run_of("first", "train.steps=3")
    fit.fit(first)
    trained_weights.export_published(trained_weights.load(Path(first.folder)), hub)
    pairs = [p for p in settings("tuned") if not p.startswith(("train.model", "data.vocab"))]
    tune = ["train.tune.lora=[layers.w*]", "train.tune.full=[norm]", "train.tune.rank=2"]
    run = trained_weights.import_published(hub, pairs=[*pairs, *tune, "train.steps=4"])
    assert run.base == str(hub)
    assert fit.fit(run).ended == "done"
    kept = Checkpoints(Path(run.folder, "checkpoints")).folder / "4"
    _, _, extra = Checkpoints(kept.parent).restore(train.abstract_state(run.recipe(1)))
    assert extra["base"] == {"folder": str(hub), "sha256": base_weights.fingerprint(hub)}
    assert sum(f.stat().st_size for f in kept.iterdir()) < 200_000  # The base alone is 190 kB.

    longer = config.read(Path(run.folder, "config.yaml"), ["train.steps=5"])
    shutil.copytree(hub, again)
    weights = load_file(hub / hf.SINGLE)
    weights["model.norm.weight"][0] += 0.1  # more than bfloat16 rounds away
    save_file(weights, hub / hf.SINGLE, metadata={"format": "pt"})
    for use in (lambda: fit.fit(longer), lambda: trained_weights.load(Path(run.folder))):
        with pytest.raises(
            base_weights.BaseChangedError, match="hub, are not the run's original ones"
        ):
            use()
    shutil.rmtree(hub)
    save_file({"x": torch.zeros(1)}, again / "adapter_model.safetensors")  # Not of the base.
    more = ["train.steps=5", f"data.tokenizer={again}"]
    with pytest.raises(SettingError, match=r"the base, .*/hub, has no config\.json, model\.saf"):
        fit.fit(longer)
    moved = config.read(Path(run.folder, "config.yaml"), [*more, f"base={again}"])
    assert fit.fit(moved).step == 5
    other = config.read(Path(run.folder, "config.yaml"), ["train.tune.alpha=1"])
    with pytest.raises(SettingError, match=r"train\.tune\.alpha was 32\.0, is 1\.0"):
        fit.fit(other)
    with pytest.raises(SettingError, match=r"train\.tune leaves weights as they are"):
        fit.fit(run_of("new", "train.tune.full=[norm]"))
