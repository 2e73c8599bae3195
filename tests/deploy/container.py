"""Openly a stand-in for Docker: it builds one stage of a Dockerfile on this machine's own files, and runs it.

What a container is made of is the kernel's own: namespaces of mounts, processes and network, a root that is read-only,
a user without rights. What is pretended: the base image is this machine, seen through an overlay; `apt-get` does
nothing; what is copied from another stage is this environment.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.requirements import lacking

#: Switches the loopback of a new network namespace on: SIOCSIFFLAGS, IFF_UP.
_LOOPBACK = (
    "import fcntl, socket, struct; "
    "fcntl.ioctl(socket.socket(), 0x8914, struct.pack('16sh', b'lo', 1).ljust(40, b'\\0'))"
)


@dataclass(frozen=True)
class Instruction:
    """One of a Dockerfile: its name in capitals, its flags, and the rest of its line."""

    name: str
    flags: tuple[str, ...]
    value: str

    @property
    def words(self) -> list[str]:
        """The rest, as JSON where it is in that form."""
        return json.loads(self.value) if self.value.startswith("[") else shlex.split(self.value)


def stages(dockerfile: Path) -> dict[str, list[Instruction]]:
    """Instructions by the name of their stage; those before the first under an empty name."""
    lines = [line for line in dockerfile.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("#")]
    found: dict[str, list[Instruction]] = {"": []}
    for line in re.sub(r"\s*\\\n\s*", " ", "\n".join(lines)).splitlines():
        if not line.strip():
            continue
        name, _, rest = line.partition(" ")
        flags = []
        while match := re.match(r"\s*(--\S+)\s+", rest):
            flags.append(match[1])
            rest = rest[match.end() :]
        if name == "FROM":
            found[rest.rpartition(" AS ")[2]] = []
        list(found.values())[-1].append(Instruction(name, tuple(flags), rest.strip()))
    return found


def one(stage: Sequence[Instruction], name: str) -> Instruction:
    """The only one of this name."""
    [found] = [each for each in stage if each.name == name]
    return found


def variables(stage: Sequence[Instruction]) -> dict[str, str]:
    """What ENV sets."""
    return dict(word.split("=", 1) for each in stage if each.name == "ENV" for word in each.words)


class Container:
    """A stage, built and running.

    Args:
        stage: its instructions.
        context: the folder that is sent to the build.
        scratch: a folder for the overlay.
        console: where its output goes.
    """

    def __init__(self, stage: Sequence[Instruction], context: Path, scratch: Path, console: Path) -> None:
        if subprocess.run(["unshare", "--mount", "--net", "--pid", "--fork", "true"], check=False).returncode != 0:
            lacking("namespaces", "unshare is refused: only root may make them here")
        self._user = one(stage, "USER").value.split(":")
        self._folder = one(stage, "WORKDIR").value
        self._variables = variables(stage)
        self._health = one(stage, "HEALTHCHECK").value.partition("CMD ")[2]
        self.console = console
        root = scratch / "root"
        script = "\n".join(
            [*_overlay(scratch), *_built(stage, context, root), *self._started(root, one(stage, "ENTRYPOINT").words)]
        )
        with console.open("wb") as output:
            self._process = subprocess.Popen(
                ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "bash", "-euc", script],
                stdout=output,
                stderr=output,
            )

    def _started(self, root: Path, command: Sequence[str]) -> Iterator[str]:
        volume = f"{root}{self._folder}"
        yield f"mount -t tmpfs -o uid={self._user[0]},gid={self._user[1]},mode=700 none {volume}"
        yield f"mount -o remount,ro {root}"
        yield f"exec chroot {root} {shlex.join(self._as_user(command))}"

    def _as_user(self, command: Sequence[str]) -> list[str]:
        user, group = self._user
        rights = ["--reuid", user, "--regid", group, "--clear-groups", "--bounding-set", "-all", "--no-new-privs"]
        given = [f"{name}={value}" for name, value in self._variables.items()]
        return ["setpriv", *rights, "env", "-i", f"--chdir={self._folder}", *given, *command]

    @property
    def first(self) -> psutil.Process:
        """The first process of the container."""
        [first] = psutil.Process(self._process.pid).children()
        return first

    def run(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """As `docker exec`."""
        inside = ["nsenter", "--target", str(self.first.pid), "--mount", "--net", "--pid", "--root"]
        return subprocess.run(
            [*inside, *self._as_user(command)], capture_output=True, text=True, check=False, timeout=60
        )

    def healthy(self, seconds: float = 90) -> str:
        """Wait until the HEALTHCHECK is content; what it says."""
        deadline = time.monotonic() + seconds
        while True:
            assert self._process.poll() is None, self.console.read_text()
            done = self.run(json.loads(self._health))
            if done.returncode == 0:
                return done.stdout
            assert time.monotonic() < deadline, (done.stdout, done.stderr, self.console.read_text())
            # Each is a Python of its own, which the server's start would have to wait for.
            time.sleep(2)

    def stop(self, seconds: float = 30) -> int:
        """As `docker stop`: SIGTERM to the first process; its exit code."""
        self.first.send_signal(signal.SIGTERM)
        return self._process.wait(timeout=seconds)

    def kill(self) -> None:
        """Whatever is left."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def _overlay(scratch: Path) -> Iterator[str]:
    """This machine's files in ``scratch/root``, to be written to without a trace."""
    scratch.mkdir()
    root = scratch / "root"
    yield f"{sys.executable} -c {shlex.quote(_LOOPBACK)}"
    yield "mount --make-rprivate /"
    yield f"mount -t tmpfs none {scratch}"
    yield f"mkdir {scratch}/upper {scratch}/work {root}"
    yield f"mount -t overlay none -o lowerdir=/,upperdir={scratch}/upper,workdir={scratch}/work {root}"
    yield f"mount --rbind /dev {root}/dev"
    yield f"mount -t proc proc {root}/proc"
    # This interpreter may be another user's own, and lie on another file system.
    for folder in dict.fromkeys([sys.base_prefix, sys.prefix, str(Path(__file__).parents[2])]):
        yield f"mkdir -p {root}{folder} && mount --rbind {folder} {root}{folder}"
        for parent in Path(folder).parents:
            yield f"chmod a+x {root}{parent}"
    yield f"mkdir {root}/pretended && ln -s /bin/true {root}/pretended/apt-get"


def _built(stage: Sequence[Instruction], context: Path, root: Path) -> Iterator[str]:
    """What RUN, COPY and WORKDIR do."""
    for each in stage:
        if each.name == "RUN":
            path = f"PATH=/pretended:{os.environ['PATH']}"
            yield f"chroot {root} env {path} /bin/sh -euc {shlex.quote(each.value)}"
        elif each.name == "WORKDIR":
            yield f"mkdir -p {root}{each.value}"
        elif each.name == "COPY":
            *sources, target = each.words
            if each.flags:
                yield f"mkdir -p {root}{target} && mount --rbind {sys.prefix} {root}{target}"
                continue
            assert len(sources) == 1 or target.endswith("/"), f"COPY of several into {target}: expected a folder"
            folder = target if target.endswith("/") or (context / sources[0]).is_dir() else str(Path(target).parent)
            yield f"mkdir -p {root}{folder}"
            for source in sources:
                # A folder's contents are copied, not the folder.
                copied = f"{source}/." if (context / source).is_dir() else source
                yield f"cp -r {context}/{copied} {root}{target}"
