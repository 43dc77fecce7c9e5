"""Adapters of experts and routers: against PEFT, in its files, and what is refused."""

import dataclasses
import functools
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import xfunc as xf
from examples.llama import config, model, train
from examples.llama.checkpoint import trained_weights
from examples.llama.data import tokenizer
from examples.llama.hub import hf
from examples.llama.hub.hf_config import FormatError
from examples.llama.model.plan import Plan
from examples.llama.model.sizes import Experts
from examples.llama.train.train_config import Recipe
from examples.llama.tune import adapters, lora
from examples.llama.tune.lora import Tune
from tests.llama.beside_peft import assert_equal, train_beside
from tests.llama.test_llama_families import CASES, reference_of
from tests.llama.test_llama_families import SIZES as PLAIN

pytestmark = [  # of peft 0.21 with transformers 5.23
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Setting .save_embedding_layers:UserWarning"),
    # It compares patterns with modules alone, and so warns of those it made for parameters itself.
    pytest.mark.filterwarnings("ignore:The following .*_pattern keys did not match:RuntimeWarning"),
]

SIZES = PLAIN | {"vocab_size": 290}
FAMILIES = ("mixtral", "qwen2-moe", "qwen3-moe")
GATE_UP, DOWN = "mlp.experts.gate_up_proj", "mlp.experts.down_proj"
NAMES = ("layers.e_gate", "layers.e_up", "layers.e_down")


@pytest.fixture(scope="module")
def hubs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Folders of random models of transformers, with tokenizers, by family."""

    @functools.cache
    def made(family: str) -> Path:
        folder = tmp_path_factory.mktemp("hub") / "model"
        reference_of(CASES[family] | {"vocab_size": 290}, folder)
        tokenizer.train(["yes and no " * 20], SIZES["vocab_size"], folder)
        return folder

    return made


def loaded(hub: Path) -> Any:
    load: Any = transformers.AutoModelForCausalLM.from_pretrained
    return load(hub, dtype=torch.float32, attn_implementation="eager")


def peft() -> Any:
    """The library, which takes seconds to import."""
    import peft

    return peft


def of_peft(hub: Path, folder: Path, **options: Any) -> Any:
    """A model with random adapters, saved in `folder`."""
    made: Any = peft().LoraConfig(r=3, lora_alpha=8, task_type="CAUSAL_LM", **options)
    theirs: Any = peft().get_peft_model(loaded(hub), made)
    generator = torch.Generator().manual_seed(0)
    for name, weight in theirs.named_parameters():
        if "lora_" in name:
            weight.data.normal_(0, 0.1, generator=generator)
    theirs.save_pretrained(folder)
    return theirs


def tokens(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(SIZES["vocab_size"], (4, 13), generator=generator)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "options", "expected"),
    [
        (
            "mixtral",
            {
                "target_modules": ["q_proj", "v_proj"],
                "target_parameters": [GATE_UP, DOWN, "gate.weight"],
            },
            Tune(
                ("layers.wq", "layers.wv", "layers.router", *NAMES),
                rank=3,
                alpha=8.0,
            ),
        ),
        (
            "qwen3-moe",
            {
                "target_modules": ["q_proj"],
                "target_parameters": [GATE_UP, DOWN],
                "modules_to_save": ["model.norm"],
                "use_rslora": True,
            },
            Tune(("layers.wq", *NAMES), ("norm",), rank=3, alpha=8.0, rank_stabilised=True),
        ),
    ],
    ids=["mixtral, router", "qwen3-moe, experts"],
)
def test_expert_adapters_training_matches_peft(
    hubs: Any, tmp_path: Path, family: str, options: dict[str, Any], expected: Tune
) -> None:
    """Adapters of PEFT are read, trained on as PEFT does, written, and read by PEFT."""
    hub, folder = hubs(family), tmp_path / "theirs"
    theirs = of_peft(hub, folder, **options)
    pairs = "train.steps=60 train.warmup=1 train.schedule=constant train.peak_lr=3e-3".split()
    more = ["train.clip=1e9", "train.weight_decay=0", "train.plan.attention=dense"]
    more += ["train.router_balance=0", "train.plan.block=8"]
    found = trained_weights.load_published(hub, None, [*pairs, *more], config.TUNING, folder)
    recipe, before = found.recipe, xf.device_get(found.base)
    assert recipe.tune == expected
    state = train.start(recipe, found.params)
    learned = [weight for weight in theirs.parameters() if weight.requires_grad]
    assert sum(leaf.numel() for leaf in xf.tree.leaves(found.params)) == sum(
        weight.numel() for weight in learned
    )
    rows = (tokens(step % 4) for step in range(30))
    state, losses = train_beside(theirs, state, found.base, recipe, rows, lr=3e-3)
    assert losses[-1] < losses[0] - 0.5
    assert_equal(found.base, before)

    after = found._replace(params=state.params)
    trained_weights.export_adapters(after, tmp_path / "ours")
    trained_weights.export_published(after, tmp_path / "merged")
    check = tokens(99)
    ours = xf.jit(lambda params: model.forward(params, check, recipe.model))(after.computing())
    with torch.no_grad():
        again = peft().PeftModel.from_pretrained(loaded(hub), tmp_path / "ours")
        for one in (again, loaded(tmp_path / "merged")):
            torch.testing.assert_close(ours.cpu(), one(check).logits, rtol=0.0, atol=1e-5)
        assert (ours.cpu() - loaded(hub)(check).logits).abs().max() > 0.5
    same = adapters.load(tmp_path / "ours", recipe.model)
    assert same[0] == recipe.tune
    assert_equal(same[1], state.params)


@pytest.mark.sample(4, seed=0)
@pytest.mark.parametrize(
    "options",
    [
        {"target_modules": [], "target_parameters": ["down_proj"], "use_rslora": True},
        {
            "target_modules": ["v_proj"],
            "target_parameters": [GATE_UP, "gate.weight"],
            "use_rslora": True,
        },
    ],
    ids=["outputs", "router"],
)
@pytest.mark.parametrize("family", FAMILIES)
def test_expert_adapters_logits_match_peft(
    hubs: Any, tmp_path: Path, family: str, options: dict[str, Any]
) -> None:
    """Theirs here, alone and merged, and ours there."""
    hub = hubs(family)
    theirs = of_peft(hub, tmp_path / "theirs", **options)
    sizes, every = hf.load(hub)
    tune, params = adapters.load(tmp_path / "theirs", sizes)
    check = tokens(7)
    with xf.disable_jit(), torch.no_grad():
        expected = theirs(check).logits
        assert (loaded(hub)(check).logits - expected).abs().max() > 0.05
        joined = lora.join(params, lora.frozen(every, sizes, tune), tune)
        for found in (joined, lora.merged(joined, torch.float32)):
            actual = model.forward(found, check, sizes)
            torch.testing.assert_close(actual, expected, rtol=0.0, atol=1e-5)
        adapters.save(tmp_path / "ours", params, sizes, tune, str(hub))
        again: Any = peft().PeftModel.from_pretrained(loaded(hub), tmp_path / "ours")
        torch.testing.assert_close(again(check).logits, expected, rtol=0.0, atol=1e-5)
    same = adapters.load(tmp_path / "ours", sizes)
    assert same[0] == tune
    assert_equal(same[1], params)


# -- what is refused ------------------------------------------------------------------------------

MOE = model.Config(
    64, 64, 64, layers=2, heads=4, kv_heads=2, family="qwen3_moe", experts=Experts(4, 2, 64)
)


@pytest.mark.parametrize(
    ("tune", "message"),
    [
        ({"lora": ("layers.e_gate",)}, r"only one of layers\.e_gate and layers\.e_up is in lora"),
        (
            {"lora": ("layers.e_*",), "full": ("layers.e_down",)},
            r"layers\.e_down: both in lora and in full",
        ),
    ],
)
def test_tune_expert_pattern_errors(tune: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Recipe(MOE, 10, tune=Tune(**tune))


def test_learned_part_counts_active_experts() -> None:
    """A token's products with the weights: of attention 12288, of experts 2 times 12288."""
    e, h, others = MOE.experts, 64, 4096 + 2 * 2048 + 4096 + 4 * 64
    assert e is not None
    used = 2 * (others + e.active * 3 * h * 64) + 64 * h
    for tune, learned in (
        (Tune(full=("layers.e_*",)), 2 * 2 * 3 * h * 64),
        (Tune(("layers.e_*",)), 0),
        (Tune(("layers.wq",), ("layers.e_down", "layers.router")), 2 * (2 * h * 64 + 4 * h)),
        (Tune(), used),
    ):
        assert lora.learned_part(MOE, tune) == pytest.approx(learned / used, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tune", "made"), [(Tune(("layers.e_*",), rank=2), False), (Tune(full=("layers.e_*",)), True)]
)
def test_gradient_skips_frozen_experts(tune: Tune, made: bool) -> None:
    """Nor the product of an adapter's matrices: either is as large as the weight."""
    sizes = dataclasses.replace(MOE, hidden=32, layers=3, experts=Experts(4, 2, 96))
    recipe = Recipe(sizes, 10, Plan(attention="dense", block=8), tune=tune, warmup=1)
    every = model.shapes(sizes, torch.float32)
    params = lora.trained(every, sizes, tune, lora.abstract(tune))
    leaf: Any = xf.ShapeDtypeStruct((2, 8), torch.int64)
    step = xf.jit(lambda p, b, f: train.gradient(p, b, recipe, f))
    lowered = step.lower(params, model.Batch(leaf, leaf), lora.frozen(every, sizes, tune))
    text = lowered.compile().as_text()
    assert text is not None
    found = re.search(r" = f32\[(4,|1,)?(96,32|32,96)\]\S* dot\(", text)
    assert bool(found) == made


def test_expert_adapters_file_errors(tmp_path: Path) -> None:
    tune = Tune(("layers.e_*",), rank=4)
    shapes = lora.trained(model.shapes(MOE), MOE, tune, lora.abstract(tune))
    params = xf.tree.map(lambda a: torch.zeros(a.shape), shapes)
    full = dataclasses.replace(tune, lora=("layers.wq",), full=("layers.e_*",))
    with pytest.raises(
        FormatError, match=r"layers\.e_gate, .*e_down: trained directly, which --adap"
    ):
        adapters.save(tmp_path / "full", params, MOE, full, "hub")
    adapters.save(tmp_path / "a", params, MOE, tune, "hub")
    dense = dataclasses.replace(MOE, family="qwen3", experts=None)
    with pytest.raises(FormatError, match=r"it has no adapter of this model\. Give others"):
        adapters.load(tmp_path / "a", dense)
    fewer = dataclasses.replace(MOE, experts=Experts(2, 2, 64))
    with pytest.raises(FormatError, match=r"lora_A.weight: \(16, 64\) in the file, \(8, 64\) by"):
        adapters.load(tmp_path / "a", fewer)
