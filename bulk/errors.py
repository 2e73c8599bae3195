"""The error tree of bulk jobs.

BulkError
├── UsageError   what was asked cannot be done: mend the command
└── JobStopped   the job did not come to its end: the same command goes on where it was

A message says what came, what was expected and what to do.
"""

from __future__ import annotations


class BulkError(Exception):
    """Root of the tree."""

    @property
    def message(self) -> str:
        """The text meant for the caller."""
        return str(self)


class UsageError(BulkError):
    """An argument, the input or the output folder is not what it should be."""


class JobStopped(BulkError):
    """The cluster, the disk or a worker failed for good; what is done stays."""
