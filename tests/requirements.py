"""Parts of a machine that a test may lack."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def lacking(part: str, reason: str) -> NoReturn:
    """Skip with the reason, or fail where REQUIRE_<PART>=1 says that the part must be there."""
    if os.environ.get(f"REQUIRE_{part.upper()}") == "1":
        pytest.fail(f"{part} is required here: {reason}")
    pytest.skip(f"no {part}: {reason}")
