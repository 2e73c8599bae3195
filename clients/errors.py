"""The error tree of the client. ``type`` is stable, ``status`` that of HTTP, whatever the transport.

ClientError
├── UsageError               nothing was sent: a file that cannot be read, no token file, a bad address
├── Refused                  4xx: mend the request, sending it again does not help
│   ├── InvalidRequest       400 invalid_request    the request's form
│   ├── InvalidOption        400 invalid_option     an option's name or value
│   ├── InvalidImage         400 invalid_image      bytes that are no picture
│   ├── TooLarge             413 too_large          over a stated limit
│   ├── UnsupportedImage     415 unsupported_image  a picture of a kind not taken
│   ├── NotAuthorised        400 not_authorised     no token, or one that is not valid (TorchServe says 400)
│   └── NotFound             404 not_found          no such model or version
├── Unavailable              503 unavailable        retryable: the same request may be answered later
│   ├── QueueFull            503 queue_full         more requests wait than the server takes, or it has no worker
│   ├── DeadlineMissed       503 deadline           not begun or not finished in time
│   ├── OutOfMemory          503 out_of_memory      the server's memory was out, for this image alone too
│   ├── WorkerDied           500 worker_died        no answer was given; detection has no side effects
│   └── Unreachable              unreachable        connection refused or lost, or no answer in time
├── ServerFault              5xx engine, internal   a fault of the server
├── BadAnswer                    bad_answer         an answer that is not of the contract
└── ClientFault                  client_fault       a fault of this client: ``__cause__`` is what it did not expect
"""

from __future__ import annotations

from typing import ClassVar


class ClientError(Exception):
    """Root of the tree.

    Args:
        message: what came, what was expected, what to do.
        status: of HTTP, where it is not the class's own; over gRPC, which loses it, the class's own is right.
        type: as the server names it; the class's own where it does not.

    Attributes:
        retryable: whether the same request may be answered later.
    """

    retryable: ClassVar[bool] = False
    _type: ClassVar[str] = "client"
    _status: ClassVar[int | None] = None

    def __init__(self, message: str, *, status: int | None = None, type: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.status = self._status if status is None else status
        self.type = type or self._type

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions are pickled by their positional arguments alone, which would lose status and type.
        return (_restored, (self.__class__, self.message, self.status, self.type))


def _restored(kind: type[ClientError], message: str, status: int | None, type: str) -> ClientError:
    return kind(message, status=status, type=type)


class UsageError(ClientError):
    """The call itself cannot be made; nothing was sent."""

    _type = "usage"


class Refused(ClientError):
    """The server does not take this request: mend it."""

    _type = "refused"


class InvalidRequest(Refused):
    """The request's form is wrong."""

    _type = "invalid_request"
    _status = 400


class InvalidOption(Refused):
    """An option is unknown, of the wrong type or out of range."""

    _type = "invalid_option"
    _status = 400


class InvalidImage(Refused):
    """The bytes do not decode to a picture."""

    _type = "invalid_image"
    _status = 400


class TooLarge(Refused):
    """The request, the image or its answer is over a stated limit."""

    _type = "too_large"
    _status = 413


class UnsupportedImage(Refused):
    """A picture, but of a format or sample type that is not taken."""

    _type = "unsupported_image"
    _status = 415


class NotAuthorised(Refused):
    """No token came, or one that is wrong, renewed meanwhile or at its end."""

    _type = "not_authorised"
    _status = 400


class NotFound(Refused):
    """No such model or version."""

    _type = "not_found"
    _status = 404


class Unavailable(ClientError):
    """Not now: the same request may be answered later."""

    retryable = True
    _type = "unavailable"
    _status: ClassVar[int | None] = 503


class QueueFull(Unavailable):
    """More requests wait than the server takes, or the model has no worker; TorchServe's text does not tell which."""

    _type = "queue_full"
    _status = 503


class DeadlineMissed(Unavailable):
    """The request reached a worker and was not begun or finished in time."""

    _type = "deadline"
    _status = 503


class OutOfMemory(Unavailable):
    """The server had no memory for the request, nor for one image of it alone."""

    _type = "out_of_memory"
    _status = 503


class WorkerDied(Unavailable):
    """The worker that had the request ended without an answer."""

    _type = "worker_died"
    _status = 500


class Unreachable(Unavailable):
    """The connection was refused or lost, or no answer came in time."""

    _type = "unreachable"
    _status = None


class ServerFault(ClientError):
    """A fault of the server; its log has it."""

    _type = "internal"
    _status = 500


class BadAnswer(ClientError):
    """An answer came that is not of the contract: another server, or one of another version."""

    _type = "bad_answer"


class ClientFault(ClientError):
    """An exception that this client does not know, of a library or of its own; ``__cause__`` has it."""

    _type = "client_fault"


def shown(value: object, length: int = 200) -> str:
    """A value as a message shows it.

    Args:
        value: of any kind, also one that Python does not print: ``repr(10**5000)`` is a ValueError.
        length: characters, after which it is cut.
    """
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 - a repr may raise anything
        text = f"a {type(value).__name__} that cannot be shown ({error})"
    return text if len(text) <= length else text[:length] + "..."
