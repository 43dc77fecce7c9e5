"""The process that examines operations: see `run.work`."""

from .run import work

work()
