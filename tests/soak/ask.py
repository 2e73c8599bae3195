"""One request, what has to come of it, and how it can end."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from clients import ClientError, wire

#: Ends: the answer wanted, those that no request may have, and those of one that may be sent again.
RIGHT, WRONG, UNDOCUMENTED, HUNG = "right", "wrong", "undocumented", "hung"
AWAY = ("worker_died", "queue_full", "deadline", "unreachable", "out_of_memory")


@dataclass(frozen=True)
class Reply:
    """What came: status of HTTP, which over gRPC the body alone says, and the body."""

    status: int
    body: bytes


@dataclass(frozen=True)
class Ask:
    """One request.

    Attributes:
        kind: for the counts.
        name: for messages.
        status: of HTTP that is documented for it.
        right: of a body with that status, whether it is the answer.
        body: keyword arguments as httpx takes them; over gRPC ``fields`` alone count.
        headers: of REST.
        fields: the input map over gRPC; None over REST.
        manner: ``whole``, or how it breaks off: ``gone`` in the midst of its upload, ``slow`` in its upload.
        flood: of headers: the front end answers and hangs up before it has read them all, and where it is quick the
            answer is lost with the connection.
    """

    kind: str
    name: str
    status: int
    right: Callable[[bytes], bool]
    body: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, bytes] | None = None
    manner: str = "whole"
    flood: bool = False


@dataclass(frozen=True)
class Outcome:
    """How one request ended.

    Attributes:
        kind: of the request.
        due: when it should have been sent, s on the monotonic clock: latency counts from then.
        ended: likewise.
        end: ``right``, ``wrong``, ``undocumented``, ``hung``, ``gone`` (as it meant to, or a flood has to), or one
            of AWAY.
        said: what came, where it is not right.
    """

    kind: str
    due: float
    ended: float
    end: str
    said: str = ""


def ending(ask: Ask, reply: Reply) -> tuple[str, str]:
    """How a request ended by its reply, and what to say of that.

    Args:
        ask: what was sent.
        reply: what came.
    """
    if reply.status == ask.status:
        return (RIGHT, "") if _right(ask, reply.body) else (WRONG, _said(ask, reply))
    kind = error_type(reply)
    return (kind if kind in AWAY else UNDOCUMENTED), _said(ask, reply)


def _right(ask: Ask, body: bytes) -> bool:
    try:
        return ask.right(body)
    except (LookupError, TypeError, ValueError):
        # A body that is not even of the form that was looked for.
        return False


def error_type(reply: Reply) -> str:
    """As the client's tree names it; empty where the reply is no error."""
    try:
        wire.json_of(reply.status, reply.body)
    except ClientError as error:
        return error.type
    return wire.failure(reply.status, "", "").type if reply.status >= 400 else ""


def grpc_status(body: bytes) -> int:
    """The status that a body over gRPC says."""
    try:
        content = json.loads(body)
    except ValueError:
        return 200
    error = content.get("error") if isinstance(content, dict) else None
    return int(error["code"]) if isinstance(error, dict) else 200


def _said(ask: Ask, reply: Reply) -> str:
    text = reply.body[:300].decode("utf-8", errors="replace")
    return f"{ask.name}: expected {ask.status}, got {reply.status} {text}"
