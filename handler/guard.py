"""Steps whose failure belongs to one request, and never to the others of its batch."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from handler.errors import InternalError, MogFaceError
from handler.request import Request

log = logging.getLogger("mogface")

_P = ParamSpec("_P")
_T = TypeVar("_T")


def own(
    request: Request, step: Callable[_P, _T | MogFaceError], *args: _P.args, **kwargs: _P.kwargs
) -> _T | MogFaceError:
    """A step's value, or the error that belongs to this request alone; any other error is logged under its id."""
    try:
        return step(*args, **kwargs)
    except MogFaceError as error:
        return error
    except Exception:
        # Whatever it is, it must not cost the other requests of the batch their answers.
        log.exception(json.dumps({"event": "fault", "request": request.id}))
        return InternalError(f"a fault of the server, logged under request {request.id or '(no id)'}")
