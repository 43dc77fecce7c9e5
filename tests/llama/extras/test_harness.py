"""Tasks of the lm-evaluation-harness, against its own model of the exported checkpoint."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lm_eval  # pyright: ignore[reportMissingImports]
import pytest
import tokenizers
import torch
import transformers
import yaml
from lm_eval.models.huggingface import HFLM  # pyright: ignore[reportMissingImports]
from lm_eval.tasks import TaskManager  # pyright: ignore[reportMissingImports]

from examples.llama.checkpoint import trained_weights
from examples.llama.data import tokenizer
from examples.llama.tools import harness
from tests.llama import tuned

LENGTH = 48  # tokens of a text
KINDS: dict[str, dict[str, Any]] = {
    "multiple_choice": {
        "doc_to_text": "{{asked}}",
        "doc_to_choice": "{{answers}}",
        "doc_to_target": "{{right}}",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
        "num_fewshot": 2,
        "fewshot_config": {"sampler": "first_n"},
    },
    "loglikelihood": {
        "doc_to_text": "{{asked}}",
        "doc_to_target": " {{answers[right]}}",
        "metric_list": [{"metric": "perplexity"}, {"metric": "acc"}],
    },
    "loglikelihood_rolling": {
        "doc_to_text": "",
        "doc_to_target": "{{text}}",
        "metric_list": [{"metric": "word_perplexity"}, {"metric": "bits_per_byte"}],
    },
    "generate_until": {
        "doc_to_text": "{{asked}}",
        "doc_to_target": " yes",
        "generation_kwargs": {"until": ["\n", "t yes"], "max_gen_toks": 9, "do_sample": False},
        "metric_list": [{"metric": "exact_match"}],
        "filter_list": [{"name": "word", "filter": [{"function": "take_first"}]}],
    },
}


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a task of each kind, whose data lies beside it."""
    folder, draw = tmp_path_factory.mktemp("tasks"), random.Random(0)
    words, lines = "yes and no the rest of it is 7 é".split(), []
    for i in range(12):
        asked = [" ".join(draw.choices(words, k=k)) for k in (3, 7, 40)][i % 3]
        answers = [" ".join(draw.choices(words, k=k)) for k in (1, 2, 5)]
        text = " ".join(draw.choices(words, k=draw.choice([2, 30, 100])))
        lines.append({"asked": asked, "answers": answers, "right": i % 2, "text": text})
    lines[4]["asked"] += " "
    lines[7]["asked"] = ""
    (folder / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for kind, task in KINDS.items():
        data = {"test": str(folder / "data.jsonl")}
        usual = {"task": f"own_{kind}", "output_type": kind, "dataset_path": "json"}
        usual |= {"dataset_kwargs": {"data_files": data}, "test_split": "test"}
        usual |= {"fewshot_split": "test"} if "num_fewshot" in task else {}
        (folder / f"{kind}.yaml").write_text(yaml.safe_dump(usual | task))
    return folder


@pytest.fixture(scope="module")
def run(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has learned a little."""
    from examples.llama.train import fit

    folder = tmp_path_factory.mktemp("runs") / "run"
    fit.fit(
        tuned.begin(
            made,
            folder,
            "text",
            "train.steps=60",
            "train.precision=float32",
            "eval_every=60",
            "save_every=60",
        )
    )
    return folder


@pytest.fixture(scope="module")
def hub(run: Path) -> Path:
    trained_weights.export_published(trained_weights.load(run), run / "hub")
    return run / "hub"


def evaluated(model: Any, tasks: Path, *kinds: str) -> dict[str, Any]:
    found = lm_eval.simple_evaluate(
        model=model,
        tasks=[f"own_{kind}" for kind in kinds],
        task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
        bootstrap_iters=0,
    )
    assert found is not None
    return found


def answers(results: dict[str, Any], kind: str) -> list[Any]:
    """What a model answered to the requests of each document."""
    samples = results["samples"][f"own_{kind}"]
    return [sample["resps"] for sample in sorted(samples, key=lambda sample: sample["doc_id"])]


def theirs(hub: Path, **how: Any) -> Any:
    model = transformers.AutoModelForCausalLM.from_pretrained(hub, dtype=torch.float32)
    known = transformers.AutoTokenizer.from_pretrained(hub)
    given = {"pretrained": model, "tokenizer": known, "batch_size": 1, "max_length": LENGTH}
    return HFLM(**given | how)


def ours(folder: Path) -> Any:
    found = trained_weights.load(folder)
    return harness.language_model(
        found.computing(),
        found.recipe.model,
        tokenizer.load(found.tokenizer),
        plan=found.recipe.plan,
        length=LENGTH,
        batch=3,
    )


def assert_same(found: dict[str, Any], expected: dict[str, Any], kind: str) -> None:
    """The same answers, and the same figures."""
    for mine, other in zip(answers(found, kind), answers(expected, kind), strict=True):
        flat = [[x for [resp] in resps for x in _items(resp)] for resps in (mine, other)]
        numbers = [[float(x) for x in each if not isinstance(x, str)] for each in flat]
        texts = [[x for x in each if isinstance(x, str)] for each in flat]
        assert numbers[0] == pytest.approx(numbers[1], rel=1e-4)
        assert texts[0] == texts[1]
    mine, other = (results["results"][f"own_{kind}"] for results in (found, expected))
    numbers = [{k: v for k, v in x.items() if isinstance(v, float)} for x in (mine, other)]
    assert len(numbers[0]) >= len(KINDS[kind]["metric_list"])
    assert numbers[0] == pytest.approx(numbers[1], rel=1e-4)


def _items(answer: Any) -> tuple[Any, ...]:
    return tuple(answer) if isinstance(answer, (tuple, list)) else (answer,)


def test_harness_tasks_match_lm_eval(run: Path, hub: Path, tasks: Path) -> None:
    kinds = [kind for kind in KINDS if kind != "loglikelihood_rolling"]
    found, expected = (evaluated(model, tasks, *kinds) for model in (ours(run), theirs(hub)))
    for kind in kinds:
        assert_same(found, expected, kind)
    # They differ enough for the comparison to mean something.
    greedy = {bool(g) for [[(_, g)]] in answers(found, "loglikelihood")}
    texts = {text for [[text]] in answers(found, "generate_until")}
    assert greedy == {True, False}
    assert len(texts) > 3


def test_harness_perplexities_match_lm_eval(run: Path, hub: Path, tasks: Path) -> None:
    """Theirs begins a text twice, and scores the second beginning, unless it is told not to."""
    kind, usual = "loglikelihood_rolling", theirs(hub)
    assert usual.tok_encode("yes")[0] == usual.prefix_token_id
    found = evaluated(ours(run), tasks, kind)
    assert_same(found, evaluated(theirs(hub, add_bos_token=False), tasks, kind), kind)


def test_harness_without_begin_token_matches_lm_eval(
    hub: Path, tasks: Path, tmp_path: Path
) -> None:
    """Like Qwen's: the token that ends a text comes before one that has no context."""
    folder = tmp_path / "hub"
    folder.mkdir()
    for file in hub.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    known = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    known.post_processor = tokenizers.processors.ByteLevel(trim_offsets=False)  # type: ignore[attr-defined]
    known.save(str(folder / "tokenizer.json"))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"bos_token": None}))
    kinds = "multiple_choice", "loglikelihood", "loglikelihood_rolling"
    found, expected = (evaluated(model, tasks, *kinds) for model in (ours(folder), theirs(folder)))
    for kind in kinds:
        assert_same(found, expected, kind)


def test_harness_command_matches_lm_eval(
    run: Path, hub: Path, tasks: Path, tmp_path: Path, command: Callable[..., tuple[int, str]]
) -> None:
    out, names = tmp_path / "results.json", "own_multiple_choice,own_generate_until"
    how = ["--task-path", tasks, "--length", LENGTH, "--batch", 5, "--out", out]
    status, told = command("harness", run, "--tasks", names, *how)
    assert status == 0
    written = json.loads(out.read_text())
    expected = evaluated(theirs(hub), tasks, "multiple_choice", "generate_until")["results"]
    assert set(written) == set(expected)
    for task, values in expected.items():
        for name, value in values.items():
            if isinstance(value, float):
                assert written[task][name] == pytest.approx(value, rel=1e-4)
    lines = [line for line in told.splitlines() if line.startswith("own_multiple_choice: acc ")]
    assert lines == [
        f"own_multiple_choice: acc {written['own_multiple_choice']['acc,none']:.4f}, "
        f"acc_norm {written['own_multiple_choice']['acc_norm,none']:.4f}"
    ]


def test_harness_command_with_limit_and_fewshot(
    run: Path, tasks: Path, tmp_path: Path, command: Callable[..., tuple[int, str]]
) -> None:
    out = tmp_path / "results.json"
    how = ["--task-path", tasks, "--fewshot", 0, "--limit", 3, "--out", out]
    assert command("harness", run, "--tasks", "own_multiple_choice", *how)[0] == 0
    limited = json.loads(out.read_text())["own_multiple_choice"]
    samples = answers(evaluated(ours(run), tasks, "multiple_choice"), "multiple_choice")
    assert limited["sample_len"] == 3 < len(samples)


def test_harness_command_errors(
    run: Path, tasks: Path, tmp_path: Path, command: Callable[..., tuple[int, str]]
) -> None:
    told = command("harness", run, "--tasks", "own_nothing", "--task-path", tasks)
    assert told[0] == 2
    assert "error: " in told[1]
    assert "own_nothing" in told[1]
    how = ["--task-path", tasks, "--length", 9]
    status, told = command("harness", run, "--tasks", "own_generate_until", *how)
    assert status == 2
    assert "error: the task asks for answers of 9 tokens, and a text has at most 9 with its" in told
