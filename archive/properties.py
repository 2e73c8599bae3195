"""config.properties: read as Java reads it, changed key by key."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from handler.errors import ConfigError

ADDRESSES = ("inference_address", "management_address", "metrics_address")
GRPC_PORTS = ("grpc_inference_port", "grpc_management_port")
#: What Java skips before a key, before a value and where a line goes on.
_BLANKS = " \t\f"
_LINE = re.compile(r"([^\s=:\\]+)[ \t\f]*=[ \t\f]*([^\\]*)")


def read(path: Path) -> dict[str, str]:
    """Keys to values; a backslash at a line's end goes on with the next line.

    Raises:
        ConfigError: the file cannot be read, or a line is no ``key=value``.
    """
    try:
        return parse(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def parse(text: str) -> dict[str, str]:
    """The same from text.

    Java would take more: other separators, escapes, blanks at a value's end (``true`` with one is not true). They
    are refused, being mistakes or read otherwise by TorchServe's launcher, which reads the file too.
    """
    values: dict[str, str] = {}
    lines = iter(re.split(r"\r\n|\r|\n", text))
    for line in lines:
        line = line.lstrip(_BLANKS)
        if not line or line.startswith(("#", "!")):
            continue
        while line.endswith("\\"):
            line = line[:-1] + next(lines, "").lstrip(_BLANKS)
        match = _LINE.fullmatch(line)
        if not match or match[2] != match[2].rstrip(_BLANKS):
            raise ConfigError(
                f"line {line[:100]!r}: expected key=value, no blanks after it, a backslash only where it goes on"
            )
        values[match[1]] = match[2]
    return values


def models(values: Mapping[str, str]) -> dict[str, dict[str, dict[str, Any]]]:
    """The ``models`` key: name to version to settings.

    Raises:
        ConfigError: no such JSON.
    """
    try:
        content = json.loads(values.get("models", "{}"))
    except ValueError as error:
        raise ConfigError(f"models: expected JSON: {error}") from error
    nested = isinstance(content, dict) and all(
        isinstance(versions, dict) and all(isinstance(each, dict) for each in versions.values())
        for versions in content.values()
    )
    if not nested:
        raise ConfigError('models: expected {"NAME": {"VERSION": {...}}}')
    return content  # type: ignore[no-any-return]


def render(values: Mapping[str, str], comments: Mapping[str, str] | None = None) -> str:
    """The file's text; a comment goes above its key, ``models`` is spread over lines."""
    lines = []
    for key, value in values.items():
        if comments and key in comments:
            lines += ["", *(f"# {line}" for line in comments[key].splitlines())]
        if key == "models":
            value = " \\\n".join(json.dumps(json.loads(value), indent=2).splitlines())
        lines.append(f"{key}={value}")
    return "\n".join(lines).lstrip("\n") + "\n"


def on_free_ports(values: Mapping[str, str]) -> dict[str, str]:
    """The same configuration on loopback ports that nothing listens on now."""
    sockets = [socket.socket() for _ in range(len(ADDRESSES) + len(GRPC_PORTS))]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        ports = [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
    changed = dict(values)
    for key, port in zip(ADDRESSES, ports, strict=False):
        changed[key] = f"http://127.0.0.1:{port}"
    for key, port in zip(GRPC_PORTS, ports[len(ADDRESSES) :], strict=True):
        changed[key] = str(port)
    return changed
