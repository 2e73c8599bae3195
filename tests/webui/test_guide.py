"""docs/web.md; its ``make web`` is run by test_cli.py."""

from __future__ import annotations

import re
import shlex

import pytest

from tests.serving.conftest import ROOT
from webui.cli import _parser

GUIDE = (ROOT / "docs" / "web.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```sh\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)


def test_the_commands_are_those_that_there_are() -> None:
    first, second = BLOCKS
    assert first == "make web\n"
    name, *flags = shlex.split(second)
    assert name == "mogface-web"
    assert _parser().parse_args(flags).model == "centerface"


@pytest.mark.parametrize("link", re.findall(r"\]\(([^)#]+)", GUIDE))
def test_links_lead_somewhere(link: str) -> None:
    path = ROOT / "docs" / link
    assert path.exists()
    assert path.suffix != ".jpg" or path.stat().st_size < 150_000
