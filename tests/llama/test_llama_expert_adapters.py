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
from examples.llama.hub.hf_config import FormatError
from examples.llama.model.plan import Plan
from examples.llama.model.sizes import Experts
from examples.llama.train.train_config import Recipe
from examples.llama.tune import lora
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
ATTENTION = ("layers.wq", "layers.wk", "layers.wv", "layers.wo")
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


def ours(theirs: Any, sizes: model.Config, tune: Tune) -> model.Params:
    """The adapters of PEFT's model.

    It has those of all experts in one pair of matrices: `lora_A` has the rows of one expert after
    those of another, and `lora_B` the columns of all experts for each rank. Gate and input are one
    parameter there.
    """
    state = peft().get_peft_model_state_dict(theirs)
    assert sizes.experts is not None
    count, found = sizes.experts.count, {}
    base = "base_model.model.model.layers.{}."
    places = {"e_gate": "mlp.experts.base_layer", "e_down": "mlp.experts", "router": "mlp.gate"}
    places |= {"e_up": places["e_gate"]} | {f"w{x}": f"self_attn.{x}_proj" for x in "qkvo"}
    for path in tune.lora:
        own = path.rpartition(".")[2]
        down, up = (
            torch.stack(
                [
                    state[f"{base.format(i)}{places[own]}.lora_{x}.weight"]
                    for i in range(sizes.layers)
                ]
            )
            for x in "AB"
        )
        if own.startswith("e_"):
            down = down.unflatten(1, (count, -1))
            up = up.unflatten(-1, (-1, count)).permute(0, 3, 1, 2)
            up = up if own == "e_down" else up.chunk(2, -2)[own == "e_up"]
        found[path] = lora.Adapter(None if own == "e_up" else down, up.contiguous())
    return lora.nested({path: xf.tree.map(torch.clone, one) for path, one in found.items()})


@pytest.mark.slow
@pytest.mark.parametrize("family", ["mixtral", "qwen3-moe"])
def test_expert_adapters_training_matches_peft(hubs: Any, tmp_path: Path, family: str) -> None:
    """The same adapters, of experts and routers too, trained as PEFT does, and merged."""
    hub = hubs(family)
    theirs = of_peft(
        hub,
        tmp_path / "theirs",
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj"],
        target_parameters=[GATE_UP, DOWN, "gate.weight"],
    )
    names = "layers.wq,layers.wk,layers.wv,layers.wo,layers.router,layers.e_*"
    pairs = "train.steps=60 train.warmup=1 train.schedule=constant train.peak_lr=3e-3".split()
    more = ["train.clip=1e9", "train.weight_decay=0", "train.plan.attention=dense"]
    more += ["train.router_balance=0", "train.plan.block=8", f"train.tune.lora=[{names}]"]
    more += ["train.tune.rank=3", "train.tune.alpha=8"]
    found = trained_weights.load_published(hub, None, [*pairs, *more], config.TUNING)
    recipe, before = found.recipe, xf.device_get(found.base)
    tune = dataclasses.replace(recipe.tune, lora=(*ATTENTION, "layers.router", *NAMES))
    params = ours(theirs, recipe.model, tune)
    assert xf.tree.map(lambda x: x.shape, params) == xf.tree.map(lambda x: x.shape, found.params)
    state = train.start(recipe, params)
    rows = (tokens(step % 4) for step in range(30))
    state, losses = train_beside(theirs, state, found.base, recipe, rows, lr=3e-3)
    assert losses[-1] < losses[0] - 0.5
    assert_equal(found.base, before)

    after = found._replace(params=state.params)
    trained_weights.export_published(after, tmp_path / "merged")
    check = tokens(99)
    mine = xf.jit(lambda params: model.forward(params, check, recipe.model))(after.computing())
    with torch.no_grad():
        merged = loaded(tmp_path / "merged")(check).logits
        torch.testing.assert_close(mine.cpu(), merged, rtol=0.0, atol=1e-5)
        torch.testing.assert_close(mine.cpu(), theirs(check).logits, rtol=0.0, atol=1e-3)
        assert (mine.cpu() - loaded(hub)(check).logits).abs().max() > 0.5
    with pytest.raises(FormatError, match=r"layers\.router, .*layers\.e_up.*: only linear maps"):
        trained_weights.export_adapters(after, tmp_path / "ours")


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
