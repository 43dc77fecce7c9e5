"""Train Llama models and use them: `python -m examples.llama COMMAND ...`."""

import argparse
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

import xfunc as xf

from . import allocation, aot, config, evaluate, fit, generate, options, tokenizer, trained
from .finite import NotFiniteError
from .reader import Reader

_EXPLAINED = (  # errors whose messages say all: what is wrong, and the repair
    ValueError,
    OSError,
    xf.errors.XfuncError,
)


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
        return COMMANDS[args.command](args.arguments)
    except KeyboardInterrupt:
        print("interrupted: what was done since the last checkpoint is lost", file=sys.stderr)
        return 130
    except _EXPLAINED as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def fit_command(argv: Sequence[str]) -> int:
    """Train, from the newest checkpoint in the run's folder or from the beginning."""
    parser = _parser("fit", fit_command)
    parser.add_argument(
        "--new-data",
        action="store_true",
        help="go on from a checkpoint though text, order or size of batches are others than its",
    )
    args = parser.parse_intermixed_args(argv)
    if xf.default_backend() == "cpu":
        allocation.keep_memory()
    outcome = fit.fit(config.read(args.config, args.settings), new_data=args.new_data)
    return {"done": 0, "interrupted": os.EX_TEMPFAIL}.get(outcome.ended, 1)


def eval_command(argv: Sequence[str]) -> int:
    """Tell the loss of trained weights on held-out data."""
    parser = _weights_parser("eval", eval_command)
    args = parser.parse_intermixed_args(argv)
    found = trained.load(args.folder, args.step, args.config, args.settings)
    reader = Reader(found.run.data, found.run.folder, found.recipe.model.vocab)
    batches = found.run.eval_batches
    loss = evaluate.held_out_loss(found.params, reader, found.recipe, batches, found.base)
    text = f"{found.name}: held-out loss {loss:.4f}"
    if not found.recipe.pairs:
        perplexity = torch.tensor(loss, dtype=torch.float64).exp()  # That of Python can overflow.
        text += f", perplexity {perplexity:.2f}"
    print(text)
    if not math.isfinite(loss):
        raise NotFiniteError("the loss is not finite: the weights have diverged")
    return 0


def generate_command(argv: Sequence[str]) -> int:
    """Continue texts."""
    parser = _weights_parser("generate", generate_command)
    add = parser.add_argument
    add("--prompt", action="append", help="a text; may be repeated (default: lines of stdin)")
    add("--new", type=int, default=128, metavar="N", help="tokens to add (default: 128)")
    add("--temperature", type=float, default=0.7, metavar="T", help="0: no chance (default: 0.7)")
    add("--top-p", type=float, default=1.0, metavar="P", help="only the likeliest (default: 1)")
    add("--seed", type=int, default=0, metavar="N", help="what is drawn depends on (default: 0)")
    args = parser.parse_intermixed_args(argv)
    generate.check(args.new, args.temperature, args.top_p)
    if not -(2**63) <= args.seed < 2**63:
        raise options.SettingError(f"--seed is {args.seed}: use a number of 64 bits")
    found = trained.load(args.folder, args.step, args.config, args.settings)
    known = tokenizer.load(found.tokenizer)
    if not (texts := args.prompt or sys.stdin.read().splitlines()):
        raise ValueError("there is no prompt: give --prompt TEXT, or lines on stdin")
    begun = [known.encode_prompt(text) for text in texts]
    prompts, lengths = generate.pad(begun)
    tokens = generate.generate(
        found.computing(),
        prompts,
        xf.random.key(args.seed),
        config=found.recipe.model,
        new=args.new,
        lengths=lengths,
        temperature=args.temperature,
        top_p=args.top_p,
        stop=() if known.end is None else (known.end,),
        plan=found.recipe.plan,
    )
    made = xf.device_get(tokens)
    if (made < 0).any():
        raise NotFiniteError(
            f"{found.name} makes logits that are not finite, and nothing can be drawn from them: "
            "the weights have diverged. Use an older checkpoint, with --step"
        )
    for text, before, row in zip(texts, begun, made.tolist(), strict=True):
        print(text + known.decode_after(before, row))
    return 0


def import_command(argv: Sequence[str]) -> int:
    """Make a run of a model in Hugging Face's format, to train it on."""
    parser = _parser(
        "import-hf", import_command, "one with config.json and safetensors", config.TUNING
    )
    parser.add_argument(
        "--adapter", type=Path, metavar="FOLDER", help="adapters of PEFT to begin with"
    )
    args = parser.parse_intermixed_args(argv)
    run = trained.import_published(args.folder, args.config, args.settings, args.adapter)
    files = "" if run.data.files else " data.files=..."
    print(f"go on with: python -m examples.llama fit --config {run.folder}/config.yaml{files}")
    return 0


def export_command(argv: Sequence[str]) -> int:
    """Write trained weights in Hugging Face's format."""
    parser = _weights_parser("export-hf", export_command)
    parser.add_argument("--out", type=Path, required=True, help="a new folder")
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    parser.add_argument(
        "--dtype",
        choices=known,
        metavar="D",
        help="float32 or bfloat16 (default: that in which the model was computed)",
    )
    parser.add_argument(
        "--adapter", action="store_true", help="write adapters alone, in PEFT's format"
    )
    args = parser.parse_intermixed_args(argv)
    if args.adapter and args.dtype:
        parser.error("--adapter writes the dtype that adapters are trained in: leave out --dtype")
    found = trained.load(args.folder, args.step, args.config, args.settings)
    if args.adapter:
        trained.export_adapters(found, args.out)
    else:
        trained.export_published(found, args.out, known.get(args.dtype))
    print(f"{found.name} is in {args.out}")
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


def _parser(
    name: str,
    command: Callable[..., int],
    folder: str | None = None,
    defaults: config.Run | None = None,
) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m examples.llama {name}",
        description=command.__doc__,
        epilog=f"settings, with their defaults:\n{options.described(defaults or config.Run())}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    presets = ", ".join(config.presets())
    parser.add_argument("--config", metavar="FILE", help=f"settings in YAML, or one of {presets}")
    if folder is not None:
        parser.add_argument("folder", type=Path, help=folder)
    parser.add_argument("settings", nargs="*", metavar="key=value", help="settings that differ")
    return parser


def _weights_parser(name: str, command: Callable[..., int]) -> argparse.ArgumentParser:
    parser = _parser(name, command, "of a run, or of a model in Hugging Face's format")
    parser.add_argument("--step", type=int, metavar="N", help="which checkpoint (default: newest)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
