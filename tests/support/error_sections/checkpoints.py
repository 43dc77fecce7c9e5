"""Errors about checkpoints that cannot be read or written: see `error_cases`."""

# ruff: noqa: E501 (a line of a message is as long as it is)

from tests.support.error_sections.case import Case, Section

DAMAGED = Section(
    "DamagedCheckpointError",
    "*(ValueError)* A file of a [checkpoint](checkpoints.md) is missing, truncated or changed; `file` is its path.",
    [
        Case(
            "A file was truncated.",
            """\
import tempfile

folder = tempfile.mkdtemp()
xf.sharding.save_checkpoint(f"{folder}/100", torch.ones(3))
xf.sharding.save_checkpoint(f"{folder}/200", torch.ones(3))
with open(f"{folder}/200/__0_0.distcp", "ab") as file:
    file.truncate(100)

xf.sharding.load_checkpoint(f"{folder}/200", torch.zeros(3))
""",
            """\
DamagedCheckpointError: the checkpoint at .../200 is damaged: __0_0.distcp has 100 bytes, and was written with ...
  at example.py:9 in <module>: xf.sharding.load_checkpoint(f"{folder}/200", torch.zeros(3))
Hint: use an older checkpoint, or a copy of this one.""",
            """\
xf.sharding.load_checkpoint(f"{folder}/100", torch.zeros(3))
""",
        ),
    ],
)

UNWRITTEN = Section(
    "CheckpointWriteError",
    "*(OSError)* A [checkpoint](checkpoints.md) could not be written. `errno` is the system's error number, such as `errno.ENOSPC` for a full disk.",
    [
        Case(
            "The folder cannot be created.",
            """\
xf.sharding.save_checkpoint("/dev/null/100", torch.ones(3))
""",
            """\
CheckpointWriteError: the checkpoint /dev/null/100 could not be written: [Errno 20] Not a directory: '/dev/null/100.partial'
  at example.py:1 in <module>: xf.sharding.save_checkpoint("/dev/null/100", torch.ones(3))
Hint: free some space or fix the file system, and save again; earlier checkpoints are unchanged.""",
            """\
import tempfile

xf.sharding.save_checkpoint(tempfile.mkdtemp() + "/100", torch.ones(3))
""",
        ),
    ],
)
