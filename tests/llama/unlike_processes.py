"""Commands of the training program that are given something else in each of several processes.

``python -m tests.llama.unlike_processes COMMAND ... + COMMAND ...`` runs the last command as the
program does. Those before it, in processes that join once, may end because the processes differ:
each of them says why. A word such as ``@1:--new=4`` is for process 1 alone, and ``cd=FOLDER`` is
where a process goes.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections.abc import Iterable, Sequence

from examples.llama import __main__ as program
from examples.llama.parallel import hosts

MODULE = "tests.llama.unlike_processes"


def own(words: Iterable[str]) -> list[str]:
    """The arguments of this process, which goes where they say."""
    found: list[str] = []
    for word in words:
        number, text = re.findall(r"^(?:@(\d):)?(.*)$", word, re.DOTALL)[0]
        if number not in ("", os.environ["RANK"]):
            continue
        if text.startswith("cd="):
            os.chdir(text.removeprefix("cd="))
        else:
            found.append(text)
    return found


def main(arguments: Sequence[str]) -> int:
    """Run commands; the exit status is that of the last one."""
    groups = itertools.groupby(arguments, lambda word: word == "+")
    *before, last = (list(words) for is_end, words in groups if not is_end)
    hosts.join()
    for command, *rest in map(own, before):
        try:
            print(f"{command} ends with {program.COMMANDS[command](rest)}", flush=True)
        except hosts.ProcessesDifferError as error:
            print(f"{command}: {error}", flush=True)
    return program.main(own(last))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
