"""Train Llama models and use them: `python -m examples.llama COMMAND ...`."""

import xfunc as xf  # before torch, which it imports without looking for garbage: 0.1 s less

# isort: split
import argparse
import dataclasses
import math
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from . import aot, config, options
from .checkpoint import trained_weights
from .data import conversations, tokenizer
from .data.data_config import DataConfig
from .data.reader import Reader
from .hub import hf
from .model import complete
from .model.parameters import NotFiniteError
from .model.sampling import Settings
from .parallel import hosts
from .train import allocation, evaluate, fit, interrupts

# Errors whose messages say all: what is wrong, and the repair.
_EXPLAINED = (ValueError, OSError, xf.errors.XfuncError)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit status is 0 if it did what it should."""
    commands = "\n".join(f"  {name:12}{f.__doc__}" for name, f in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="python -m examples.llama",
        description=__doc__,
        epilog=f"commands, each of which has a --help of its own:\n{commands}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...")
    args = parser.parse_args(argv)
    try:
        with interrupts.raised():
            status = COMMANDS[args.command](args.arguments)
            hosts.leave()
    except KeyboardInterrupt as error:
        number = error.number if isinstance(error, interrupts.Interrupted) else signal.SIGINT
        text = f"interrupted by {signal.Signals(number).name}"
        if args.command == "fit":
            text += ": the same command continues from the last checkpoint"
            return hosts.failed(text, os.EX_TEMPFAIL)
        return hosts.failed(text, 128 + number)  # As shells say it.
    except hosts.ProcessesDifferError as error:
        return hosts.failed(f"error: {args.command}: {error}", 2)
    except _EXPLAINED as error:
        return hosts.failed(f"error: {error}", 2)
    return status


def fit_command(argv: Sequence[str]) -> int:
    """Train, from the newest checkpoint in the run's folder or from the beginning."""
    parser = _parser("fit", fit_command, defaults=config.Run())
    text = "go on from a checkpoint though text, order or size of batches are others than its"
    parser.add_argument("--new-data", action="store_true", help=text)
    args = _parsed("fit", parser, argv)
    if xf.default_backend() == "cpu":
        allocation.keep_memory()
    outcome = fit.fit(config.read(args.config, args.settings), new_data=args.new_data)
    return {"done": 0, "interrupted": os.EX_TEMPFAIL}.get(outcome.ended, 1)


def eval_command(argv: Sequence[str]) -> int:
    """Tell the loss of trained weights on held-out data."""
    found = _loaded(_parsed("eval", _weights_parser("eval", eval_command), argv))
    data, rows = found.run.data, evaluate.local_rows(found.recipe, found.run.data.batch)
    reader = Reader(data, found.run.folder, found.recipe.model.vocab, rows=rows)
    hosts.check_same_data(reader.state(0))
    batches = found.run.eval_batches
    loss = evaluate.held_out_loss(found.params, reader, found.recipe, batches, found.base)
    reader.check()
    text = f"{found.name}: held-out loss {loss:.4f}"
    if not found.recipe.pairs:
        perplexity = torch.tensor(loss, dtype=torch.float64).exp()  # That of Python can overflow.
        text += f", perplexity {perplexity:.2f}"
    _say(text)
    if not math.isfinite(loss):
        raise _diverged(found, "the loss is not finite")
    return 0


def _diverged(found: trained_weights.Trained, what: str) -> NotFiniteError:
    return NotFiniteError(f"{found.name}: {what}: the weights have diverged; {found.remedy}")


def generate_command(argv: Sequence[str]) -> int:
    """Continue texts."""
    parser = _weights_parser("generate", generate_command)
    add = parser.add_argument_group("texts").add_argument
    add("--prompt", action="append", help="a text; may be repeated (default: lines of stdin)")
    add("--new", type=int, default=128, metavar="N", help="tokens to add (default: 128)")
    add("--stop", action="append", default=[], metavar="TEXT", help="ends a text; may be repeated")
    add("--batch", type=int, default=8, metavar="N", help="texts made at a time (default: 8)")
    add("--chat", action="store_true", help="texts are what a user says: print the answers")
    add("--template", metavar="FILE", help="of chats (default: the tokenizer's)")
    add = parser.add_argument_group("sampling").add_argument
    add("--temperature", type=float, default=0.7, help="0: the likeliest (default: 0.7)")
    add("--top-k", type=int, default=0, metavar="K", help="only the K likeliest (default: 0, any)")
    add("--top-p", type=float, default=1.0, metavar="P", help="the likeliest, up to P (default: 1)")
    add("--min-p", type=float, default=0.0, metavar="P", help="at least P of the likeliest's")
    add("--seed", type=int, default=0, metavar="N", help="of random numbers (default: 0)")
    args = _parsed("generate", parser, argv)
    names = [field.name for field in dataclasses.fields(Settings)]
    settings = Settings(**{name: getattr(args, name) for name in names})
    if args.new < 1:
        raise options.SettingError(f"--new is {args.new}: generate 1 token or more")
    if args.batch < 1:
        raise options.SettingError(f"--batch is {args.batch}: make 1 text or more at a time")
    if "" in args.stop:
        raise options.SettingError("--stop is empty: every text ends with that")
    found = _loaded(args)
    given = sys.stdin.read().splitlines() if hosts.is_first() and not args.prompt else args.prompt
    if not (texts := hosts.from_first(given)):
        raise ValueError("there is no prompt: give --prompt TEXT, or lines on stdin")

    known = tokenizer.load(found.tokenizer)
    if args.chat:
        encoder = conversations.Encoder(known, DataConfig(kind="chat", template=args.template))
        prompts = [encoder.prompt([{"role": "user", "content": text}]) for text in texts]
    else:
        prompts = [known.encode_prompt(text) for text in texts]
    try:
        made = complete.complete(
            found.computing(),
            known,
            prompts,
            args.new,
            settings,
            config=found.recipe.model,
            plan=found.recipe.plan,
            stops=args.stop,
            size=args.batch,
        )
    except NotFiniteError as error:
        raise _diverged(found, str(error)) from None
    for text, more in zip(texts, made, strict=True):
        _say(more if args.chat else text + more)
    return 0


def import_command(argv: Sequence[str]) -> int:
    """Make a run of a model in Hugging Face's format, to train it on."""
    parser = _parser(
        "import-hf", import_command, "one with config.json and safetensors", config.TUNING
    )
    add = parser.add_argument
    add("--adapter", type=Path, metavar="FOLDER", help="adapters of PEFT to begin with")
    args = _parsed("import-hf", parser, argv)
    run = trained_weights.import_published(args.folder, args.config, args.settings, args.adapter)
    if ignored := hf.left_out(args.folder):
        _say(f"only the text model is imported, without {ignored[0]} and {len(ignored) - 1} more")
    files = "" if run.data.files else " data.files=..."
    _say(f"go on with: python -m examples.llama fit --config {run.folder}/config.yaml{files}")
    return 0


def export_command(argv: Sequence[str]) -> int:
    """Write trained weights in Hugging Face's format."""
    parser = _weights_parser("export-hf", export_command)
    add, known = parser.add_argument, {"float32": torch.float32, "bfloat16": torch.bfloat16}
    add("--out", type=Path, required=True, help="a new folder")
    add("--dtype", choices=known, help="default: that in which the model was computed")
    add("--adapter", action="store_true", help="write adapters alone, in PEFT's format")
    args = _parsed("export-hf", parser, argv)
    if args.adapter and args.dtype:
        parser.error("--adapter writes the dtype that adapters are trained in: leave out --dtype")
    found = _loaded(args)
    if args.adapter:
        trained_weights.export_adapters(found, args.out)
    else:
        trained_weights.export_published(found, args.out, known.get(args.dtype))
    _say(f"{found.name} is in {args.out}")
    return 0


def aot_command(argv: Sequence[str]) -> int:
    """Tell what a training step takes on TPUs, without any."""
    return aot.main(argv)


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "fit": fit_command,
    "eval": eval_command,
    "generate": generate_command,
    "import-hf": import_command,
    "export-hf": export_command,
    "aot": aot_command,
}


def _parsed(
    command: str, parser: argparse.ArgumentParser, argv: Sequence[str]
) -> argparse.Namespace:
    """The arguments, which are those of all processes, if there are several."""
    args = parser.parse_intermixed_args(argv)
    hosts.join()
    hosts.check_same_arguments(command, vars(args))
    return args


def _loaded(args: argparse.Namespace) -> trained_weights.Trained:
    return trained_weights.load(args.folder, args.step, args.config, args.settings)


def _say(text: str) -> None:
    """Print; of several processes the first one does."""
    if hosts.is_first():
        print(text)


def _parser(
    name: str,
    command: Callable[..., int],
    folder: str | None = None,
    defaults: config.Run | None = None,
) -> argparse.ArgumentParser:
    """The parser of a command with settings; without defaults, they are those of a folder."""
    run, shown = defaults or config.Run(), defaults is not None
    others = "--config and the defaults" if shown else "--config, or else of the run"
    parser = argparse.ArgumentParser(
        prog=f"python -m examples.llama {name}",
        description=command.__doc__,
        epilog=options.described(run, config.GROUPS, with_values=shown),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    presets = ", ".join(config.presets())
    parser.add_argument("--config", metavar="FILE", help=f"settings in YAML, or one of {presets}")
    if folder is not None:
        parser.add_argument("folder", type=Path, help=folder)
    text = f"settings, which override those of {others}: see below"
    parser.add_argument("settings", nargs="*", metavar="key=value", help=text)
    return parser


def _weights_parser(name: str, command: Callable[..., int]) -> argparse.ArgumentParser:
    parser = _parser(name, command, "of a run, or of a model in Hugging Face's format")
    parser.add_argument("--step", type=int, metavar="N", help="which checkpoint (default: newest)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
