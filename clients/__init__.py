"""The Python client: faces of photographs, over REST or gRPC, and the server's management.

>>> from pathlib import Path
>>> from clients import Client
>>> with Client("grpc://127.0.0.1:7070") as client:  # doctest: +SKIP
...     answer = client.detect(Path("photo.jpg"), score_threshold=0.5)
"""

from clients.answer import LANDMARKS, Answer, Face, Model
from clients.client import AsyncClient, Client
from clients.errors import (
    BadAnswer,
    ClientError,
    ClientFault,
    DeadlineMissed,
    InvalidImage,
    InvalidOption,
    InvalidRequest,
    NotAuthorised,
    NotFound,
    OutOfMemory,
    QueueFull,
    Refused,
    ServerFault,
    TooLarge,
    Unavailable,
    Unreachable,
    UnsupportedImage,
    UsageError,
    WorkerDied,
)
from clients.management import Management
from clients.retry import Retry
from clients.version import Version, Worker

__all__ = [
    "LANDMARKS",
    "Answer",
    "AsyncClient",
    "BadAnswer",
    "Client",
    "ClientError",
    "ClientFault",
    "DeadlineMissed",
    "Face",
    "InvalidImage",
    "InvalidOption",
    "InvalidRequest",
    "Management",
    "Model",
    "NotAuthorised",
    "NotFound",
    "OutOfMemory",
    "QueueFull",
    "Refused",
    "Retry",
    "ServerFault",
    "TooLarge",
    "Unavailable",
    "Unreachable",
    "UnsupportedImage",
    "UsageError",
    "Version",
    "Worker",
    "WorkerDied",
]
