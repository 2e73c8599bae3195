"""`make serve`, `make demo` and `make env`: the server as a person meets it."""

from __future__ import annotations

import contextlib
import re
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import httpx

from archive import properties
from archive.pack import read_artifacts
from archive.server import Server, environment
from archive.verify import PHOTOGRAPH
from handler.errors import ArtifactError, ConfigError

#: Faces that a demonstration lists.
_ROWS = 20
_COLUMNS = "{:>6}  {:>31}  {:>15}  {:>15}"


def serve(config: Path, names: Sequence[str]) -> int:
    """TorchServe in the foreground; one command that works as printed once the models are ready.

    Args:
        config: config.properties.
        names: of models in its model store.

    Returns:
        0 when it was interrupted or told to end, 1 when it ended by itself.

    Raises:
        SetupError, NotReady: why it cannot serve.
    """
    started = time.monotonic()
    # TorchServe takes paths of the configuration from the current folder.
    server = _server(config.resolve(), names, Path.cwd(), Path.cwd() / "build" / "serve")
    try:
        with _signals(), server:
            server.wait(names)
            print(f"\nReady after {time.monotonic() - started:.1f} s: {', '.join(names)}. Stop with Ctrl-C. Try:\n")
            print(f"  {curl(server, names[0])}\n", flush=True)
            minutes = server.values.get("token_expiration_min", "60")
            print(
                f"The token ends {minutes} minutes after the start; README.md, Tokens, says how to renew it.",
                flush=True,
            )
            code = server.wait_until_stopped()
            print(
                f"TorchServe ended by itself (its launcher's exit code is {code}). logs/ts_log.log has its last words; "
                "where it has none it was killed, for instance for want of memory: `dmesg` says so.",
                file=sys.stderr,
            )
            return 1
    except KeyboardInterrupt:
        print("Stopped.")
        return 0


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """What a service manager and a closing terminal send counts as Ctrl-C; a second one does not cut the end short."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def interrupt(number: int, frame: object) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def curl(server: Server, model: str, photograph: Path = PHOTOGRAPH) -> str:
    """A curl command with the token in it."""
    header = "".join(f' -H "{name}: {value}"' for name, value in server.headers().items())
    return f"curl -s{header} -T {shlex.quote(str(photograph))} {server.inference}/predictions/{model}"


def demo(config: Path, photograph: Path, picture: Path, model: str = "centerface") -> int:
    """Start a server on free ports, ask it for the photograph's faces, show them, stop it.

    Args:
        config: config.properties to take everything but the ports from.
        photograph: to send.
        picture: where the annotated copy goes.
        model: to ask.

    Raises:
        ArtifactError: the photograph cannot be read.
    """
    try:
        data = photograph.read_bytes()
    except OSError as error:
        raise ArtifactError(f"photograph {photograph}: {error}") from error
    with tempfile.TemporaryDirectory(prefix="mogface-demo-") as scratch:
        folder = Path(scratch)
        private = isolated(config, folder, Path.cwd())
        with (
            (folder / "console.log").open("wb") as console,
            _server(private, [model], folder, folder / "tmp", console) as server,
        ):
            server.wait([model])
            address = f"{server.inference}/predictions/{model}"
            answer = httpx.post(address, content=data, headers=server.headers(), timeout=120)
            shown = httpx.post(
                address, content=data, headers=server.headers() | {"X-Face-Output": "image"}, timeout=120
            )
    if answer.status_code != 200 or shown.status_code != 200:
        print(f"{photograph}: {answer.status_code} {answer.text}", file=sys.stderr)
        return 1
    picture.parent.mkdir(parents=True, exist_ok=True)
    picture = picture.with_suffix(".png" if shown.headers["content-type"] == "image/png" else ".jpg")
    picture.write_bytes(shown.content)
    content = answer.json()
    size, faces, weights = content["image"], content["faces"], content["model"]["weights"]
    count = f"{len(faces)} face{'' if len(faces) == 1 else 's'}"
    print(f"{photograph.name}: {size['width']}x{size['height']}, {count} by {weights}")
    print(_COLUMNS.format("score", "box x1 y1 x2 y2", "right eye", "left eye"))
    for face in faces[:_ROWS]:
        points = face["landmarks"] or {}
        eyes = [_point(points.get(name)) for name in ("right_eye", "left_eye")]
        print(_COLUMNS.format(f"{face['score']:.3f}", " ".join(f"{number:7.1f}" for number in face["box"]), *eyes))
    if len(faces) > _ROWS:
        print(f"... and {len(faces) - _ROWS} more")
    print(f"annotated: {picture}")
    return 0


def env(config: Path, names: Sequence[str] = ()) -> str:
    """Shell exports after which the bare ``torchserve --start --models NAME.mar`` serves from the root.

    Raises:
        EnvironmentFault: no Java.
    """
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in environment(config, names).items())


def isolated(config: Path, folder: Path, root: Path | None = None) -> Path:
    """A copy of the configuration in ``folder``, on free ports, its paths absolute.

    Args:
        config: config.properties.
        folder: for the copy.
        root: what its relative paths start from; its own folder where None.
    """
    values = properties.on_free_ports(properties.read(config))
    root = root or config.resolve().parent
    for key in ("model_store", "metrics_config"):
        if key in values:
            values[key] = str(root / values[key])
    # TorchServe's launcher splits it at blanks: as an address a path has none.
    values["vmargs"] = re.sub(
        r"configurationFile=(\S+)",
        lambda match: f"configurationFile={(root / match[1]).as_uri()}",
        values.get("vmargs", ""),
    )
    copy = folder / "config.properties"
    copy.write_text(properties.render(values), encoding="utf-8")
    return copy


def _point(point: Sequence[float] | None) -> str:
    return f"{point[0]:.1f} {point[1]:.1f}" if point else "-"


def _server(config: Path, names: Sequence[str], folder: Path, temp: Path, output: IO[bytes] | None = None) -> Server:
    """A server of these models, refused here where one has no archive: TorchServe would start without it."""
    server = Server(config, [f"{name}.mar" for name in names], folder, temp, output)
    declared = server.values.get("metrics_config")
    if declared and not (folder / declared).is_file():
        raise ConfigError(
            f"metrics_config={declared} of {config} is not there, seen from {folder}: no worker would start without it"
        )
    for name in names:
        mar = folder / server.values["model_store"] / f"{name}.mar"
        if not mar.is_file():
            raise ArtifactError(f"{mar} is missing: run `mogface-archive build {name}`")
        said = read_artifacts(mar)
        configured = properties.models(server.values).get(said["name"], {})
        if said["version"] not in configured:
            listed = ", ".join(configured) or "none"
            raise ConfigError(
                f"{mar.name} is version {said['version']}, and {config} configures {listed} of it: TorchServe would "
                "take defaults of its own; `mogface-archive configure` writes what fits"
            )
    return server
