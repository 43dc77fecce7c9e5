"""A model for EleutherAI's lm-evaluation-harness: `pip install lm-eval`."""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from ..checkpoint import trained_weights
from ..data import tokenizer
from ..data.tokenizer import Tokenizer
from ..model import Config, Params
from ..model.complete import complete, prompts_of
from ..model.plan import Plan
from ..model.sampling import Settings
from ..model.scores import Row, Scorer, windows
from ..options import SettingError
from ..parallel import hosts

# What tasks call the most tokens of an answer, the first that is there.
_NEW = "max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens"


class Asked(Protocol):
    """A request: what the harness calls an Instance."""

    @property
    def args(self) -> tuple[Any, ...]:
        """The arguments of the request."""
        ...


class Answers:
    """The interface that the harness expects of a model.

    Args:
        params: the weights, in the form the model computes with.
        config: the sizes.
        known: the tokenizer.
        plan: how the model is computed.
        length: the most tokens of a text; earlier ones are left out.
        batch: texts at a time.
        new: the most tokens of an answer if the harness gives no number.
    """

    def __init__(
        self,
        params: Params,
        config: Config,
        known: Tokenizer,
        *,
        plan: Plan = Plan(),
        length: int,
        batch: int = 8,
        new: int = 256,
    ):
        self._params, self._config, self._plan, self._known = params, config, plan, known
        self._length, self._batch, self._new = length, batch, new
        self._scorer = Scorer(params, config, plan, length=length, batch=batch)
        # The first token of a text also needs one before it.
        first = known.end if known.begin is None else known.begin
        if first is None:
            raise SettingError("the tokenizer has no token that begins or ends a text: name one")
        self._first = first

    def loglikelihood(self, requests: Sequence[Asked]) -> list[tuple[float, bool]]:
        """The log-probabilities of continuations, and whether they are the likeliest ones."""
        found = self._scorer([self._pair(*request.args) for request in requests])
        return [(score.log_probability, score.is_greedy) for score in found]

    def loglikelihood_rolling(self, requests: Sequence[Asked]) -> list[float]:
        """The log-probabilities of whole texts.

        Long ones are scored in windows of which only the last overlaps another, as the harness's
        own models score them: figures are comparable.
        """
        totals = []
        for request in requests:
            tokens = [self._first, *self._known.encode([request.args[0]])[0]]
            found = self._scorer([*windows(tokens, self._length, self._length)])
            totals.append(sum(score.log_probability for score in found))
        return totals

    def generate_until(self, requests: Sequence[Asked]) -> list[str]:
        """The continuations of contexts, up to a stop string."""
        groups: dict[Any, list[int]] = {}
        for i, request in enumerate(requests):
            key = json.dumps(request.args[1], sort_keys=True)
            groups.setdefault(key, []).append(i)
        found: dict[int, str] = {}
        for key, numbers in groups.items():
            texts = [requests[i].args[0] for i in numbers]
            found |= zip(numbers, self._continued(texts, json.loads(key)), strict=True)
        return [found[i] for i in range(len(requests))]

    def _continued(self, texts: Sequence[str], how: dict[str, Any]) -> list[str]:
        until = how.get("until") or []
        given_new = (how[name] for name in _NEW if how.get(name) is not None)
        new = int(next(given_new, min(self._new, self._length // 2)))
        if not 0 < new < self._length:
            raise SettingError(
                f"the task asks for answers of {new} tokens, and a text has at most {self._length} "
                "with its prompt: give --length, or max_gen_toks in the task"
            )
        names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
        given: dict[str, Any] = {name: how[name] for name in names if how.get(name) is not None}
        if not how.get("do_sample", given.get("temperature", 0.0) > 0):
            given["temperature"] = 0.0
        else:
            given = {"temperature": 1.0} | given
        return complete(
            self._params,
            self._known,
            prompts_of(self._known, texts, self._length - new),
            new,
            Settings(**given),
            config=self._config,
            plan=self._plan,
            stops=[until] if isinstance(until, str) else [text for text in until if text],
            size=self._batch,
        )

    def _pair(self, context: str, continuation: str) -> Row:
        # A space belongs to the word after it, and so does its token.
        cut = len(context.rstrip())
        context, continuation = context[:cut], context[cut:] + continuation
        before, whole = self._known.encode([context, context + continuation])
        scored = max(len(whole) - len(before), 1)
        begins = self._known.begin is not None or scored == len(whole)
        tokens = [*[self._first][:begins], *whole][-self._length - 1 :]
        return Row(tokens, min(scored, len(tokens) - 1))


def language_model(*args: Any, **kwargs: Any) -> Any:
    """`Answers` as a model of the harness: for `lm_eval.simple_evaluate(model=...)`."""
    try:
        from lm_eval.api.model import LM  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise SettingError(f"{error}: install it with `pip install lm-eval`") from error

    class Model(Answers, LM):
        def __init__(self) -> None:
            LM.__init__(self)
            Answers.__init__(self, *args, **kwargs)

    return Model()


def run(args: argparse.Namespace, say: Callable[[str], object] = print) -> int:
    """Run tasks on a checkpoint, and print and write the results."""
    hosts.check_alone("harness")
    found = trained_weights.load(args.folder, args.step, args.config, args.settings)
    length = max(found.run.context, found.run.data.seq)
    model = language_model(
        found.computing(),
        found.recipe.model,
        tokenizer.load(found.tokenizer),
        plan=found.recipe.plan,
        length=args.length or length,
        batch=args.batch,
    )
    import lm_eval  # pyright: ignore[reportMissingImports]
    from lm_eval.tasks import TaskManager  # pyright: ignore[reportMissingImports]

    manager = TaskManager(include_path=args.task_path)
    names = {name: manager.match_tasks([name]) for name in args.tasks.split(",")}
    if unknown := [name for name, found in names.items() if not found]:
        raise SettingError(
            f"--tasks has {unknown[0]}, which is neither a task of lm-eval nor one in --task-path: "
            "`lm-eval ls tasks` lists its tasks"
        )
    results = lm_eval.simple_evaluate(
        model=model,
        tasks=[name for found in names.values() for name in found],
        task_manager=manager,
        num_fewshot=args.fewshot,
        limit=args.limit,
        bootstrap_iters=0,
    )
    for task, values in results["results"].items():
        told = (
            f"{k.removesuffix(',none')} {v:.4f}" for k, v in values.items() if isinstance(v, float)
        )
        say(f"{task}: {', '.join(told)}")
    if args.out is not None:
        Path(args.out).write_text(json.dumps(results["results"], indent=2, default=str), "utf-8")
    return 0
