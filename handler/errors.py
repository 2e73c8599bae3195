"""The error tree. Every error that a caller can meet has an HTTP status and a stable ``type``.

MogFaceError
├── RequestError             the caller can mend it
│   ├── InvalidRequest       400 invalid_request    the request's form
│   ├── InvalidOption        400 invalid_option     an option's name or value
│   ├── InvalidImage         400 invalid_image      bytes that are no picture
│   ├── TooLarge             413 too_large          over a stated limit
│   └── UnsupportedImage     415 unsupported_image  a picture of a kind not taken
├── ServiceError             the caller cannot
│   ├── EngineError          500 engine             the network failed on this input
│   │   ├── DeviceLost       500 engine             and will on every other: the worker must be started again
│   │   └── OutOfMemory      503 out_of_memory      memory was out even for this image alone; may be sent again
│   ├── InternalError        500 internal           a fault of this program
│   └── DeadlineExceeded     503 deadline           not begun in time; may be sent again
└── SetupError               nothing is served: raised while an archive is built, checked or loaded
    ├── ConfigError          a setting
    ├── ArtifactError        a file of weights, a graph, an archive
    └── EnvironmentFault     this machine lacks what is needed

A message says what came, what was expected and what to do.
"""

from __future__ import annotations

from typing import ClassVar


class MogFaceError(Exception):
    """Root of the tree."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "internal"

    @property
    def message(self) -> str:
        """The text meant for the caller."""
        return str(self)


class RequestError(MogFaceError):
    """The caller's to mend."""

    status = 400
    type = "invalid_request"


class InvalidRequest(RequestError):
    """The request's form is wrong: no image, unknown fields, malformed JSON."""


class InvalidOption(RequestError):
    """An option is unknown, of the wrong type or out of range."""

    type = "invalid_option"


class InvalidImage(RequestError):
    """The bytes do not decode to a picture."""

    type = "invalid_image"


class TooLarge(RequestError):
    """The request, an image or its answer is over a stated limit."""

    status = 413
    type = "too_large"


class UnsupportedImage(RequestError):
    """A picture, but of a format or sample type that is not taken."""

    status = 415
    type = "unsupported_image"


class ServiceError(MogFaceError):
    """This side's fault."""


class EngineError(ServiceError):
    """The inference engine refused or failed on an input, or gave non-finite numbers."""

    type = "engine"


class DeviceLost(EngineError):
    """The GPU answers this process nothing any more: after an illegal address only a new process can use it."""


class OutOfMemory(EngineError):
    """Memory of the GPU or the machine was out: of a batch, which then runs in halves, or of one image alone."""

    status = 503
    type = "out_of_memory"


class InternalError(ServiceError):
    """A fault of this program; its log has the traceback under the request's id."""


class DeadlineExceeded(ServiceError):
    """The image was not begun before its deadline."""

    status = 503
    type = "deadline"


class SetupError(MogFaceError):
    """Raised while building, checking or loading; never answers a request."""

    type = "setup"


class ConfigError(SetupError):
    """A setting is unknown, of the wrong type, out of range or at odds with another."""


class ArtifactError(SetupError):
    """A file of weights, a graph or an archive is missing, damaged or not what it should be."""


class EnvironmentFault(SetupError):
    """The machine lacks a program, a package, a device or a network that is needed."""
