from __future__ import annotations

import json
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archive import properties
from archive.properties import ADDRESSES, GRPC_PORTS, on_free_ports, parse, read, render
from handler.errors import ConfigError

keys = st.text("abcdefghijklmnopqrstuvwxyz_.ABC0123456789#!", min_size=1).filter(lambda key: key[0] not in "#!")
values = st.text(st.characters(blacklist_characters="\\\r\n", blacklist_categories=["Cs"]), max_size=40).filter(
    lambda value: value == value.strip(" \t\f")
)
names = st.text("abcdefghijklmnopqrstuvwxyz-_.0123456789", min_size=1)


@given(st.dictionaries(keys.filter(lambda key: key != "models"), values))
def test_what_is_rendered_is_read_again(written: dict[str, str]) -> None:
    assert parse(render(written)) == written


entries = st.dictionaries(names, st.integers() | st.booleans(), max_size=2)


@given(st.dictionaries(names, st.dictionaries(names, entries, max_size=2), max_size=2))
def test_models_are_spread_over_lines_and_read_again(models: dict[str, dict[str, dict[str, int]]]) -> None:
    text = render({"a": "1", "models": json.dumps(models), "b": "2"})
    found = parse(text)
    assert properties.models(found) == models
    assert (found["a"], found["b"]) == ("1", "2")


def test_rendered_comments_stand_above_their_keys() -> None:
    text = render({"a": "1", "b": "2"}, {"b": "why\nand how", "c": "of nothing"})
    assert text == "a=1\n\n# why\n# and how\nb=2\n"


#: As java.util.Properties reads them.
JAVA = {
    "plain": ("a=1\nb=2", {"a": "1", "b": "2"}),
    "blanks": ("  a \t= 1\n\t\n\fb=\f2", {"a": "1", "b": "2"}),
    "no value": ("a=", {"a": ""}),
    "an equals sign in a value": ("vmargs=-Xmx1g -Da=b", {"vmargs": "-Xmx1g -Da=b"}),
    "comments": ("# a=1\n  ! b=2\n#\nc=3 # not one", {"c": "3 # not one"}),
    "a comment does not go on": ("# folder C:\\\na=1", {"a": "1"}),
    "a line goes on": ("a=1,\\\n    2,\\\n\t3\nb=4", {"a": "1,2,3", "b": "4"}),
    "a line goes on after a blank": ("a=1 \\\n  2", {"a": "1 2"}),
    "what goes on is no comment": ("a=1\\\n#2", {"a": "1#2"}),
    "a line goes on past the end": ("a=1\\", {"a": "1"}),
    "an empty line ends it": ("a=1\\\n\nb=2", {"a": "1", "b": "2"}),
    "Windows": ("a=1\\\r\n  2\r\nb=3\r\n", {"a": "12", "b": "3"}),
    "old Macs": ("a=1\rb=2", {"a": "1", "b": "2"}),
    "the last one counts": ("a=1\na=2", {"a": "2"}),
    "other ends of lines are none": ("a=1\u20282\x0b3\x85", {"a": "1\u20282\x0b3\x85"}),
    "nothing": ("", {}),
}


@pytest.mark.parametrize(("text", "expected"), JAVA.values(), ids=JAVA)
def test_text_is_read_as_java_reads_it(text: str, expected: dict[str, str]) -> None:
    assert parse(text) == expected


#: What Java reads too, though otherwise than it looks, or than TorchServe's launcher does.
REFUSED = {
    "no separator": "inference_address",
    "a colon": "inference_address: http://127.0.0.1:8080",
    "a colon before an equals sign": "vmargs: -Da=b",
    "a blank": "job_queue_size 100",
    "a blank before an equals sign": "a b=1",
    "no key": "=1",
    "a blank at the end": "disable_token_authorization=true ",
    "a tab at the end": "job_queue_size=100\t",
    "an escape": "model_store=C:\\models",
    "an escape in a key": "a\\=b=1",
    "two backslashes at the end": "a=1\\\\\nb=2",
}


@pytest.mark.parametrize("line", REFUSED.values(), ids=REFUSED)
def test_what_java_reads_otherwise_is_refused(line: str) -> None:
    with pytest.raises(ConfigError, match="expected key=value"):
        parse(f"a=1\n{line}\n")


def test_messages_are_short() -> None:
    with pytest.raises(ConfigError) as refused:
        parse("x" * 10_000)
    assert len(refused.value.message) < 250


def test_files_are_told_by_their_path(tmp_path: Path) -> None:
    for content in (b"no pair", b"\xff\xfe=1", None):
        path = tmp_path / "config.properties"
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(ConfigError, match=r"config\.properties: "):
            read(path)


@pytest.mark.parametrize("text", ["{", "[]", "1", '{"a": 1}', '{"a": {"1.0": 1}}', '{"a": [1]}', ""])
def test_models_of_another_form_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="models: expected"):
        properties.models({"models": text})


def test_no_models_are_none() -> None:
    assert properties.models({}) == {}


def test_free_ports_are_free_and_differ() -> None:
    base = {"inference_address": "http://0.0.0.0:8080", "job_queue_size": "7"}
    changed = on_free_ports(base)
    ports = []
    for key in ADDRESSES:
        address = urlsplit(changed[key])
        assert (address.scheme, address.hostname) == ("http", "127.0.0.1")
        ports.append(address.port)
    ports += [int(changed[key]) for key in GRPC_PORTS]
    assert len(set(ports)) == 5
    for port in ports:
        with socket.socket() as each:
            each.bind(("127.0.0.1", port or 0))
    assert changed["job_queue_size"] == "7"
    assert base["inference_address"] == "http://0.0.0.0:8080"
