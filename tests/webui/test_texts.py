from __future__ import annotations

import ast
import re
import string

import pytest

from clients import ClientError, InvalidImage, Refused, errors
from tests.serving.conftest import ROOT
from webui.texts import LANGUAGES, TABLE, Texts, preferred


def placeholders(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


def test_every_text_is_there_in_every_language() -> None:
    for key, texts in TABLE.items():
        assert len(texts) == len(LANGUAGES), key
        assert all(text.strip() for text in texts), key
        assert len({frozenset(placeholders(text)) for text in texts}) == 1, key
    chinese = [texts[1] for key, texts in TABLE.items() if key not in ("language", "json", "csv")]
    assert all(re.search("[\u4e00-\u9fff]", text) for text in chinese)
    assert not any(re.search("[\u4e00-\u9fff]", texts[0]) for key, texts in TABLE.items() if key != "language")


def test_every_text_is_used_and_every_one_that_is_used_is_there() -> None:
    sources = [path for path in (ROOT / "webui").glob("*.py") if path.name != "texts.py"]
    said = {
        node.value
        for path in sources
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    # Some are named by their prefix and a word: error_InvalidImage, example_both, column_size.
    prefixes = tuple(each for each in ("error_", "example_", "column_") if each in said or each == "error_")
    unused = {key for key in TABLE if key not in said and not key.startswith(prefixes)}
    assert unused == set()
    used = {
        node.slice.value
        for path in sources
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Name)
        and node.value.id == "texts"
        and isinstance(node.slice, ast.Constant)
    }
    assert len(used) > 20
    assert used <= set(TABLE)


def below(kind: type[ClientError]) -> list[type[ClientError]]:
    return [found for each in kind.__subclasses__() for found in (each, *below(each))]


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_error_of_the_client_has_words_of_its_own(language: str) -> None:
    kinds = [kind for kind in below(ClientError) if kind.__module__ == errors.__name__]
    assert len(kinds) > 15
    texts = Texts(language)
    assert len({texts.error(kind("")) for kind in kinds}) == len(kinds)


def test_an_error_that_a_later_client_adds_has_those_of_its_parent() -> None:
    class Blurred(InvalidImage):
        pass

    assert Texts("en").error(Blurred("")) == TABLE["error_InvalidImage"][0] != Texts("en").error(Refused(""))


def test_an_unknown_language_is_refused() -> None:
    with pytest.raises(ValueError, match="'fr': expected one of en, zh"):
        Texts("fr")


@pytest.mark.parametrize(
    ("accepted", "language"),
    [
        ("", "en"),
        ("zh-CN,zh;q=0.9,en;q=0.8", "zh"),
        ("en-GB,en;q=0.9,zh;q=0.8", "en"),
        ("fr,zh;q=0.5,en;q=0.4", "zh"),
        ("en;q=0.1, zh-TW;q=0.7", "zh"),
        ("zh;q=0", "en"),
        ("zh;q=much", "en"),
        ("fr", "en"),
    ],
)
def test_the_language_is_the_browsers(accepted: str, language: str) -> None:
    assert preferred(accepted) == language
