"""The error tree of the load tests.

LoadTestError
├── LoadFailed    a run gave no figures that mean anything
├── NoPoint       no point of a sweep does what is asked
├── NoPlan        nothing that could be bought does
└── BadResults    a file of results that is none
"""

from __future__ import annotations


class LoadTestError(Exception):
    """Root of the tree; its message says what came, what was expected, what to do."""


class LoadFailed(LoadTestError):
    """The run gave no figures that mean anything; with what it said."""


class NoPoint(LoadTestError):
    """No point of a sweep does what is asked; with the best there is."""


class BadResults(LoadTestError):
    """A file of results cannot be read, or is none; with its path."""


class NoPlan(LoadTestError):
    """No number of servers does what is asked, or nothing is known to plan with; with what stands in the way."""
