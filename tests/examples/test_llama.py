"""The Llama example: the model against Hugging Face, the optimizer against torch, and training."""

import dataclasses
import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import xfunc as xf
from examples.llama import data, demo, model, optimizer, train

CONFIGS = {
    "untied": model.Config.tiny(),
    "tied_one_kv_head": dataclasses.replace(model.Config.tiny(tied=True), kv_heads=1),
}


@pytest.fixture(params=list(CONFIGS.values()), ids=list(CONFIGS))
def config(request: pytest.FixtureRequest) -> model.Config:
    return request.param


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain eager torch: `xf.scan` is a Python loop."""

    def scan(f: Any, init: Any, xs: Any) -> tuple[Any, None]:
        for i in range(len(xf.tree.leaves(xs)[0])):
            init, _ = f(init, xf.tree.map(lambda x: x[i], xs))  # noqa: B023
        return init, None

    monkeypatch.setattr(xf, "scan", scan)


def tokens_of(config: model.Config, batch: int = 2, length: int = 13) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(config.vocab, (batch, length), generator=generator)


def eager_loss_and_grads(params: Any, batch: torch.Tensor, config: model.Config) -> Any:
    grads, loss = torch.func.grad_and_value(model.loss)(params, batch, config)
    return loss, grads


def assert_close(actual: Any, expected: Any, *, rtol: float, atol: float) -> None:
    def check(a: torch.Tensor, e: torch.Tensor) -> None:
        torch.testing.assert_close(xf.device_get(a), e, rtol=rtol, atol=atol)

    xf.tree.map(check, actual, expected)


# The model


def hugging_face_names(params: model.Params) -> Iterator[tuple[str, torch.Tensor]]:
    names = {
        "attn_norm": "input_layernorm",
        "wq": "self_attn.q_proj",
        "wk": "self_attn.k_proj",
        "wv": "self_attn.v_proj",
        "wo": "self_attn.o_proj",
        "mlp_norm": "post_attention_layernorm",
        "w_gate": "mlp.gate_proj",
        "w_up": "mlp.up_proj",
        "w_down": "mlp.down_proj",
    }
    for ours, theirs in names.items():
        for i, weight in enumerate(params["layers"][ours]):
            yield f"model.layers.{i}.{theirs}.weight", weight
    yield "model.embed_tokens.weight", params["embed"]
    yield "model.norm.weight", params["norm"]
    if "head" in params:
        yield "lm_head.weight", params["head"]


@pytest.mark.usefixtures("loop")
def test_matches_hugging_face(config: model.Config) -> None:
    import transformers

    hub: Any = transformers  # Its stubs know neither keyword of the configuration.
    theirs = hub.LlamaForCausalLM(
        hub.LlamaConfig(
            vocab_size=config.vocab,
            hidden_size=config.hidden,
            intermediate_size=config.intermediate,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads,
            rms_norm_eps=config.norm_eps,
            rope_theta=config.rope_theta,
            tie_word_embeddings=config.tied,
            attn_implementation="eager",
        )
    ).double()
    params = model.init(config, seed=1, dtype=torch.float64)
    weights = dict(hugging_face_names(params))
    missing = theirs.load_state_dict(weights, strict=False).missing_keys
    assert missing == (["lm_head.weight"] if config.tied else [])

    batch = tokens_of(config)
    expected = theirs(batch, labels=batch)
    expected.loss.backward()
    # They round to float32 in norms, softmax and loss, as we do, hence the tolerance.
    torch.testing.assert_close(
        model.forward(params, batch, config), expected.logits, rtol=1e-6, atol=1e-6
    )
    loss, grads = eager_loss_and_grads(params, batch, config)
    torch.testing.assert_close(loss, expected.loss, rtol=1e-6, atol=1e-6)
    ours = dict(hugging_face_names(grads))
    for name, parameter in theirs.named_parameters():
        torch.testing.assert_close(ours[name], parameter.grad, rtol=1e-5, atol=1e-7)


def test_compiled_loss_and_gradients_match_a_python_loop(
    config: model.Config, request: pytest.FixtureRequest
) -> None:
    params, batch = model.init(config), tokens_of(config)
    compiled = xf.jit(xf.value_and_grad(lambda p, b: model.loss(p, b, config)))(params, batch)
    request.getfixturevalue("loop")
    expected = eager_loss_and_grads(params, batch, config)
    assert_close(compiled, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.usefixtures("loop")
def test_logits_do_not_see_the_future() -> None:
    config = model.Config.tiny()
    params, tokens = model.init(config), tokens_of(config)
    changed = tokens.clone()
    changed[:, 7:] = (changed[:, 7:] + 1) % config.vocab
    before, after = (model.forward(params, t, config) for t in (tokens, changed))
    torch.testing.assert_close(before[:, :7], after[:, :7])
    assert (before[:, 7:] != after[:, 7:]).any(-1).all()


@pytest.mark.usefixtures("loop")
def test_bfloat16_stays_bfloat16_and_the_loss_is_float32() -> None:
    config = model.Config.tiny()
    params, tokens = model.init(config, dtype=torch.bfloat16), tokens_of(config)
    assert model.forward(params, tokens, config).dtype == torch.bfloat16
    assert model.loss(params, tokens, config).dtype == torch.float32


def test_shapes_are_those_of_init(config: model.Config) -> None:
    params, shapes = model.init(config, dtype=torch.bfloat16), model.shapes(config)
    assert xf.tree.structure(params) == xf.tree.structure(shapes)
    for leaf, shape in zip(xf.tree.leaves(params), xf.tree.leaves(shapes), strict=True):
        assert (leaf.shape, leaf.dtype) == (shape.shape, shape.dtype)


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
def test_published_sizes(name: str, count: int) -> None:
    shapes = model.shapes(model.PUBLISHED[name])
    assert sum(math.prod(leaf.shape) for leaf in xf.tree.leaves(shapes)) == count


# The optimizer


@pytest.mark.parametrize("beta2", [0.95, 0.999])
def test_adamw_matches_torch(beta2: float) -> None:
    generator = torch.Generator().manual_seed(0)

    def tree() -> Any:
        sizes = {"a": 12, "b": [5]}
        return xf.tree.map(lambda n: torch.randn(n, generator=generator).double(), sizes)

    params = tree()
    reference = [p.clone() for p in xf.tree.leaves(params)]
    theirs = torch.optim.AdamW(reference, lr=0.1, betas=(0.9, beta2), weight_decay=0.2)
    state = optimizer.adamw_init(params)
    for step in range(1, 6):
        grads = tree()
        for p, g in zip(reference, xf.tree.leaves(grads), strict=True):
            p.grad = g
        theirs.step()
        params, state = optimizer.adamw_update(
            grads, state, params, 0.1, beta2=beta2, weight_decay=0.2
        )
        assert int(state.step) == step
        for ours, expected in zip(xf.tree.leaves(params), reference, strict=True):
            torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("limit", [1.0, 100.0])
def test_clipping_matches_torch(limit: float) -> None:
    grads = {"a": torch.arange(6.0).reshape(2, 3), "b": [torch.full((4,), -3.0)]}
    clipped, norm = optimizer.clip_by_global_norm(grads, limit)
    reference = [torch.zeros_like(g) for g in xf.tree.leaves(grads)]
    for p, g in zip(reference, xf.tree.leaves(grads), strict=True):
        p.grad = g.clone()
    torch.testing.assert_close(norm, torch.nn.utils.clip_grad_norm_(reference, limit))
    for ours, p in zip(xf.tree.leaves(clipped), reference, strict=True):
        torch.testing.assert_close(ours, p.grad)


def test_clipping_leaves_zero_gradients_alone() -> None:
    clipped, norm = optimizer.clip_by_global_norm([torch.zeros(3)], 1.0)
    assert norm == 0
    assert (clipped[0] == 0).all()


@pytest.mark.parametrize(
    ("step", "expected"), [(0, 0.2), (1, 0.4), (4, 1.0), (5, 1.0), (10, 0.55), (15, 0.1), (99, 0.1)]
)
def test_schedule(step: int, expected: float) -> None:
    lr = optimizer.warmup_cosine(torch.tensor(step), peak=1.0, warmup=5, total=15)
    torch.testing.assert_close(lr, torch.tensor(expected))


# The data


def test_text_survives_the_tokenizer() -> None:
    text = data.load_text()
    assert len(text) > 100_000
    assert "compound statement" in text
    tokenizer = data.train_tokenizer(text, 300)
    assert tokenizer.get_vocab_size() == 300
    unseen = 'naïve “quotes”\n\tλ x: "🙂"'
    assert tokenizer.decode(tokenizer.encode(unseen).ids) == unseen


def test_user_text(tmp_path: Any) -> None:
    path = tmp_path / "text.txt"
    path.write_text("déjà vu", encoding="utf-8")
    assert data.load_text(path) == "déjà vu"


def test_held_out_tokens_are_the_rest() -> None:
    text = "the quick brown fox " * 50
    tokenizer = data.train_tokenizer(text, 270)
    train_part, held_out = data.encode(tokenizer, text, held_out=0.2)
    assert tokenizer.decode([*train_part, *held_out]) == text
    assert len(held_out) == round(0.2 * (len(train_part) + len(held_out)))


def test_batches_depend_on_seed_and_step_only() -> None:
    tokens = np.arange(1000)

    def batch(step: int, seed: int) -> torch.Tensor:
        return data.batch_at(tokens, step, seed=seed, batch=4, seq=16)

    first = batch(0, 0)
    assert (first.shape, first.dtype) == ((4, 17), torch.int64)
    assert (first.diff(dim=1) == 1).all()
    assert torch.equal(first, batch(0, 0))
    assert not torch.equal(first, batch(1, 0))
    assert not torch.equal(first, batch(0, 1))


def test_too_short_a_text_is_refused() -> None:
    with pytest.raises(ValueError, match="4 tokens cannot fill a window of 5: use more text"):
        data.batch_at(np.arange(4), 0, seed=0, batch=1, seq=4)


def test_every_window_can_be_drawn() -> None:
    tokens = np.arange(6)
    starts = [data.batch_at(tokens, i, seed=0, batch=8, seq=4)[:, 0] for i in range(8)]
    assert set(torch.cat(starts).tolist()) == {0, 1}


# Training and generation


def test_twenty_steps_lower_the_loss_in_one_trace() -> None:
    recipe = train.Recipe(model.Config.tiny(), steps=20, warmup=2, peak_lr=1e-2)
    batch = tokens_of(recipe.model, batch=4, length=17)
    state, losses = train.init(recipe), []
    before = xf.trace_count(train.train_step)
    for _ in range(recipe.steps):
        state, metrics = train.train_step(state, batch, recipe=recipe)
        losses.append(metrics.loss)
    assert xf.trace_count(train.train_step) == before + 1
    first, *_, last = (float(loss) for loss in xf.device_get(losses))
    assert last < 0.7 * first
    assert int(xf.device_get(state.opt.step)) == recipe.steps


def test_train_step_is_adamw_on_the_clipped_gradient(request: pytest.FixtureRequest) -> None:
    recipe = train.Recipe(model.Config.tiny(), steps=20, warmup=4, clip=0.5)
    state, batch = train.init(recipe), tokens_of(recipe.model)
    compiled, metrics = train.train_step(train.init(recipe), batch, recipe=recipe)
    request.getfixturevalue("loop")
    _, grads = eager_loss_and_grads(state.params, batch, recipe.model)
    clipped, norm = optimizer.clip_by_global_norm(grads, recipe.clip)
    assert norm > recipe.clip
    lr = recipe.peak_lr / 4
    params, opt = optimizer.adamw_update(
        clipped, state.opt, state.params, lr, weight_decay=recipe.weight_decay
    )
    torch.testing.assert_close(float(xf.device_get(metrics.lr)), lr)
    torch.testing.assert_close(
        float(xf.device_get(metrics.grad_norm)), float(norm), rtol=1e-4, atol=0.0
    )
    assert_close(compiled.opt, opt, rtol=1e-3, atol=1e-6)
    # The first update is lr * sign(gradient): a gradient near zero may round to either sign.
    assert_close(compiled.params, params, rtol=0.0, atol=2.1 * lr)


def test_greedy_generation_matches_one_token_at_a_time(request: pytest.FixtureRequest) -> None:
    config = model.Config.tiny()
    params, prompt = model.init(config), tokens_of(config, batch=1, length=3)[0]
    window = torch.cat([prompt, torch.zeros(6, dtype=torch.int64)])
    noise = torch.zeros(6, config.vocab)
    tokens = train.generate(params, window, torch.tensor(3), noise, config=config)
    request.getfixturevalue("loop")
    for _ in range(6):
        logits = model.forward(params, prompt[None], config)
        prompt = torch.cat([prompt, logits[0, -1:].argmax(-1)])
    assert xf.device_get(tokens).tolist() == prompt.tolist()


def test_generation_follows_the_noise() -> None:
    config = model.Config.tiny()
    noise = torch.zeros(4, config.vocab)
    noise[range(4), [7, 5, 3, 1]] = 1e6
    window = torch.tensor([9, 9, 0, 0, 0, 0])
    tokens = train.generate(model.init(config), window, torch.tensor(2), noise, config=config)
    assert xf.device_get(tokens).tolist() == [9, 9, 7, 5, 3, 1]


def test_text_plot() -> None:
    assert demo.text_plot([2.0, 1.5, 1.0, 0.25], height=2) == "  2.00 █▄  \n       ███▂"
    assert len(demo.text_plot(range(1, 1000), width=20).splitlines()[-1]) == 27


def test_demo(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 300, encoding="utf-8")
    assert demo.main(["--data", str(text), "--steps", "12", "--out", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "loss.png").read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert re.search(r"loss: first \d+\.\d+, last \d+\.\d+, held-out \d+\.\d+", printed)
    assert re.search(r"traces of train_step: \d+", printed)
