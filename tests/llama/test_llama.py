"""The Llama example: the model and its plans, the training step, and the demo.

The model against Hugging Face is in test_llama_hf.
"""

import dataclasses
import math
import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import xfunc as xf
from examples.llama import demo, model, train
from examples.llama.model import attention
from examples.llama.model.plan import POLICIES, Plan
from examples.llama.parallel.sharding import Sharding

DENSE = Plan(policy="everything", attention="dense")
SMALL = Plan(block=8, loss_chunk=5)
forward = xf.jit(model.forward, static_argnames=("config", "plan"))
loss_of = xf.jit(model.loss, static_argnames=("config", "plan"))


def tokens_of(config: model.Config, batch: int = 2, length: int = 13) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(config.vocab, (batch, length), generator=generator)


def assert_close(actual: Any, expected: Any, *, rtol: float, atol: float) -> None:
    def check(a: torch.Tensor, e: torch.Tensor) -> None:
        torch.testing.assert_close(xf.device_get(a), xf.device_get(e), rtol=rtol, atol=atol)

    xf.tree.map(check, actual, expected)


# -- attention ------------------------------------------------------------------------------------


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize("documents", [False, True], ids=["one document", "several"])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "seq", "block"),
    [(4, 2, 40, 8), (2, 2, 32, 32), (6, 3, 33, 4), (4, 1, 7, 512), (2, 1, 1, 1)],
)
def test_attention_dense_and_blockwise_match_torch(
    heads: int, kv_heads: int, seq: int, block: int, documents: bool
) -> None:
    generator = torch.Generator().manual_seed(0)

    def random(n: int) -> torch.Tensor:
        return torch.randn(2, n, seq, 4, generator=generator, dtype=torch.float64)

    q, k, v, weights = random(heads), random(kv_heads), random(kv_heads), random(heads)
    segments = None
    if documents:  # of other lengths in each row, and padding, which is number 0, at the end
        segments = torch.stack([torch.arange(seq) // 3, torch.arange(seq) // 7]) + 1
        segments[1, seq - seq // 4 :] = 0

    def expected(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(seq, seq, dtype=torch.bool).tril()
        if segments is not None:
            mask = (mask & (segments[:, None] == segments[:, :, None]))[:, None]
        group = heads // kv_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    inputs = [x.clone().requires_grad_() for x in (q, k, v)]
    out = expected(*inputs)
    grads = torch.autograd.grad((out * weights).sum(), inputs)
    for function in (attention.dense, lambda *x: attention.blockwise(*x, block=block)):
        found, pull = xf.vjp(lambda q, k, v, f=function: f(q, k, v, segments), q, k, v)
        assert_close((found, pull(weights)), (out.detach(), grads), rtol=1e-10, atol=1e-12)


def test_attention_blockwise_never_holds_all_scores() -> None:
    x = xf.ShapeDtypeStruct((1, 2, 4096, 8), torch.float32)

    def largest(f: Any) -> int:
        text = str(
            xf.make_hlo(xf.grad(lambda q, k, v: f(q, k, v).sum(), argnums=(0, 1, 2)))(x, x, x)
        )
        shapes = re.findall(r"f32\[([\d,]+)\]", text)
        return max(math.prod(map(int, s.split(","))) for s in shapes)

    assert largest(attention.dense) >= 4096**2 * 2
    assert largest(lambda *x: attention.blockwise(*x, block=128)) <= 4096 * 2 * 128


# -- the model ------------------------------------------------------------------------------------


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize("policy", POLICIES)
def test_loss_and_grads_equal_under_every_policy(policy: str) -> None:
    config = model.TINY["tiny-scaled"]
    params = model.init(config, 1, torch.float64)
    batch = model.batch_of(tokens_of(config, length=24))
    segments = torch.arange(23)[None] // 9 + torch.tensor([[1], [2]])
    targets = batch.targets.masked_fill(torch.arange(23) % 7 == 3, model.IGNORE)
    batch = model.Batch(batch.tokens, targets, segments)
    of = xf.value_and_grad(model.loss)
    expected = of(params, batch, config, DENSE)
    found = of(params, batch, config, dataclasses.replace(SMALL, policy=policy))
    assert_close(found, expected, rtol=1e-6, atol=1e-9)  # norms are found in float32


def test_loss_matches_torch_cross_entropy() -> None:
    config = model.Config.tiny()
    params, batch = model.init(config), model.batch_of(tokens_of(config))
    targets = batch.targets.clone()
    targets[0, :5] = model.IGNORE
    batch = batch._replace(targets=targets)
    logits = xf.device_get(forward(params, batch.tokens, config=config))
    expected = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=model.IGNORE)
    assert_close(loss_of(params, batch, config=config, plan=SMALL), expected, rtol=1e-5, atol=1e-6)
    assert model.target_count(batch) == 2 * 12 - 5
    nothing = batch._replace(targets=torch.full_like(targets, model.IGNORE))
    assert loss_of(params, nothing, config=config) == 0


def test_forward_ignores_later_tokens_and_other_documents() -> None:
    config = model.Config.tiny()
    params, tokens = model.init(config), tokens_of(config)
    changed = tokens.clone()
    changed[:, 7:] = (changed[:, 7:] + 1) % config.vocab
    segments = (torch.arange(13) >= 7).long()[None] + torch.tensor([[1], [1]])
    for plan in (DENSE, SMALL):
        before, after = (
            xf.device_get(forward(params, t, config=config, plan=plan)) for t in (tokens, changed)
        )
        torch.testing.assert_close(before[:, :7], after[:, :7])
        assert (before[:, 7:] != after[:, 7:]).any(-1).all()
        apart = xf.device_get(forward(params, tokens, config=config, plan=plan, segments=segments))
        alone = xf.device_get(forward(params, tokens[:, 7:], config=config, plan=plan))
        torch.testing.assert_close(apart[:, 7:], alone, rtol=1e-4, atol=1e-4)


def test_forward_bfloat16_and_loss_float32_dtypes() -> None:
    config = model.Config.tiny()
    params, tokens = model.init(config, dtype=torch.bfloat16), tokens_of(config)
    assert forward(params, tokens, config=config).dtype == torch.bfloat16
    assert loss_of(params, model.batch_of(tokens), config=config).dtype == torch.float32


@pytest.mark.parametrize("name", model.TINY)
def test_shapes_match_init(name: str) -> None:
    config = model.TINY[name]
    params, shapes = model.init(config, dtype=torch.bfloat16), model.shapes(config)
    assert xf.tree.structure(params) == xf.tree.structure(shapes)
    for leaf, shape in zip(xf.tree.leaves(params), xf.tree.leaves(shapes), strict=True):
        assert (leaf.shape, leaf.dtype) == (shape.shape, shape.dtype)


def test_init_depends_on_the_seed_alone() -> None:
    config = model.Config.tiny()
    first, again, other = (xf.device_get(model.init(config, seed)) for seed in (3, 3, 4))
    assert torch.equal(first["layers"]["wq"], again["layers"]["wq"])
    assert not torch.equal(first["layers"]["wq"], other["layers"]["wq"])
    wq = first["layers"]["wq"]
    assert wq.std().item() == pytest.approx(config.hidden**-0.5, rel=0.1)
    assert not torch.equal(wq[0], wq[1])


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("llama3.2-1b", 1_235_814_400),
        ("llama3.2-3b", 3_212_749_824),
        ("llama3.1-8b", 8_030_261_248),
        ("llama3.1-70b", 70_553_706_496),
        ("llama3.1-405b", 405_853_388_800),
    ],
)
def test_published_parameter_counts(name: str, count: int) -> None:
    shapes = model.shapes(model.PUBLISHED[name])
    assert sum(math.prod(leaf.shape) for leaf in xf.tree.leaves(shapes)) == count


# -- settings -------------------------------------------------------------------------------------


WRONG = {
    "sizes": (lambda: model.Config(9, 32, 80, 0, 4, 2), "layers is 0: use 1 or more"),
    "features of a head": (
        lambda: model.Config(9, 36, 80, 2, 4, 2),
        "hidden is 36, heads is 4, kv_heads is 2: make the features of a head an even number",
    ),
    "heads of keys": (
        lambda: model.Config(9, 32, 80, 2, 4, 3),
        "heads a multiple of kv_heads",
    ),
    "policy": (lambda: Plan(policy="all"), "unknown policy 'all': use one of full, attention"),
    "attention": (lambda: Plan(attention="flash"), "unknown attention 'flash': use one of dense"),
    "block": (lambda: Plan(block=0), "block is 0: use 1 or more"),
    "optimizer": (
        lambda: train.Recipe(model.TINY["tiny"], 9, optimizer="sgd", warmup=1),
        "unknown optimizer 'sgd': use one of adamw, adafactor, muon",
    ),
    "schedule": (
        lambda: train.Recipe(model.TINY["tiny"], 9, schedule="step", warmup=1),
        "unknown schedule 'step': use one of cosine, linear, wsd, constant",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_config_plan_and_recipe_errors(name: str) -> None:
    make, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        make()


# -- training -------------------------------------------------------------------------------------


def test_train_step_lowers_loss_in_one_trace() -> None:
    recipe = train.Recipe(model.Config.tiny(), steps=20, warmup=2, peak_lr=1e-2)
    batch = model.batch_of(tokens_of(recipe.model, batch=4, length=17))
    state, told = train.init(recipe), []
    before = xf.trace_count(train.train_step)
    for _ in range(recipe.steps):
        state, metrics = train.train_step(state, batch, recipe=recipe)
        told.append(metrics)
    assert xf.trace_count(train.train_step) == before + 1
    first, *_, last = xf.device_get(told)
    assert last.loss < 0.7 * first.loss
    assert int(xf.device_get(state.step)) == recipe.steps
    assert last.tokens == 4 * 16
    assert not last.skipped


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("name", ["adamw", "adafactor"])
def test_train_step_equals_optimizer_on_clipped_gradient(name: str, parts: int) -> None:
    plan = dataclasses.replace(SMALL, microbatches=parts)
    recipe = train.Recipe(
        model.Config.tiny(), steps=20, plan=plan, optimizer=name, warmup=4, clip=0.5
    )
    batch = model.batch_of(tokens_of(recipe.model, batch=4))
    # Parts of the batch have other numbers of targets.
    targets = batch.targets.clone()
    targets[0, :9] = model.IGNORE
    batch = batch._replace(targets=targets)
    state, metrics = train.train_step(train.init(recipe), batch, recipe=recipe)

    before = train.init(recipe)
    loss, grads = xf.value_and_grad(model.loss)(before.params, batch, recipe.model, DENSE)
    norm = torch.nn.utils.get_total_norm(xf.tree.leaves(xf.device_get(grads)))
    assert norm > recipe.clip
    clipped = xf.tree.map(lambda g: g * (recipe.clip / norm), grads)
    lr = recipe.peak_lr / 4
    update = xf.jit(recipe.transformation(lr).update)
    updates, opt = update(clipped, before.opt, before.params)
    params = xf.optim.apply_updates(before.params, updates)
    found = metrics.lr, metrics.grad_norm, metrics.loss
    assert_close(found, (torch.tensor(lr), norm, loss), rtol=1e-4, atol=0.0)
    assert_close(state.opt, opt, rtol=1e-3, atol=1e-6)
    # The first update is about lr * sign(gradient): one near zero may round to either sign.
    assert_close(state.params, params, rtol=0.0, atol=2.1 * lr)


def test_train_step_warmup_as_long_as_run_raises() -> None:
    recipe = train.Recipe(model.Config.tiny(), steps=9, warmup=9)
    batch = model.batch_of(tokens_of(recipe.model))
    with pytest.raises(ValueError, match="warmup is 9 steps of 9: make it shorter than the run"):
        train.train_step(train.init(recipe), batch, recipe=recipe)


def test_train_step_unequal_microbatches_raises() -> None:
    recipe = train.Recipe(model.Config.tiny(), 9, Plan(microbatches=3), warmup=1)
    batch = model.batch_of(tokens_of(recipe.model, batch=4))
    with pytest.raises(ValueError, match="a batch of 4 rows cannot be split into 3 equal parts"):
        train.train_step(train.init(recipe), batch, recipe=recipe)


def test_train_step_non_finite_skipped_or_ignored() -> None:
    recipe = train.Recipe(model.Config.tiny(), steps=90, warmup=1)
    batch = model.batch_of(tokens_of(recipe.model))
    state = train.init(recipe)
    broken = xf.device_get(state.params)
    broken["norm"] = broken["norm"] * torch.inf
    before = xf.device_get(state._replace(params=broken))
    after, metrics = train.train_step(state._replace(params=broken), batch, recipe=recipe)
    assert metrics.skipped
    assert not torch.isfinite(xf.device_get(metrics.loss))
    assert_close(after, before, rtol=0.0, atol=0.0)

    ignoring = dataclasses.replace(recipe, skip_bad=False)
    after, metrics = train.train_step(
        train.init(recipe)._replace(params=broken), batch, recipe=ignoring
    )
    assert not metrics.skipped
    assert after.step == 1
    assert not torch.isfinite(xf.device_get(after.params["embed"])).all()


def test_abstract_state_on_abstract_mesh() -> None:
    sharding = Sharding.of({"fsdp": 64, "tensor": 4}, abstract=True)
    recipe = train.Recipe(
        model.PUBLISHED["llama3.1-405b"], 100, Plan(sharding=sharding), optimizer="adafactor"
    )
    state, parts = train.abstract_state(recipe), ("fsdp", "expert", "context")
    assert state.params["layers"]["w_up"].sharding.spec == xf.P(None, "tensor", parts)
    means = state.opt[0]
    assert means.v_row["layers"]["w_up"].shape == (126, 53248)
    assert means.v_row["layers"]["w_up"].sharding.spec == xf.P(None, "tensor")
    assert means.v_col["layers"]["w_up"].sharding.spec == xf.P(None, parts)
    assert means.v["norm"].sharding.spec == xf.P(parts)
    assert means.v["embed"].sharding.spec == xf.P()
    with pytest.raises(ValueError, match="plan has no sharding"):
        train.abstract_state(train.Recipe(model.TINY["tiny"], 100))


# -- the demo -------------------------------------------------------------------------------------


def test_text_plot() -> None:
    assert demo.text_plot([2.0, 1.5, 1.0, 0.25], height=2) == "  2.00 █▄  \n       ███▂"
    assert len(demo.text_plot(range(1, 1000), width=20).splitlines()[-1]) == 27


def test_demo_prints_losses(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 300, encoding="utf-8")
    assert demo.main(["--data", str(text), "--steps", "12"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"loss: first \d+\.\d+, last \d+\.\d+, held-out \d+\.\d+", printed)
    assert re.search(r"traces of train_step: \d+", printed)
