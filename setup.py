"""The part of the build that setup.cfg cannot say: gRPC stubs are generated from clients/proto/*.proto."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from setuptools import Command, setup
from setuptools.command.build import build

ROOT = Path(__file__).resolve().parent
FOLDER = Path("clients", "proto")


class BuildStubs(Command):
    """Part of ``build``, as setuptools' SubCommand: into the built tree, or beside the sources of an editable one."""

    description = "generate gRPC stubs"
    user_options = ()
    editable_mode = False

    def initialize_options(self) -> None:
        """No value is known yet."""
        self.build_lib: str | None = None

    def finalize_options(self) -> None:
        """Take the build's folder."""
        self.set_undefined_options("build_py", ("build_lib", "build_lib"))

    def run(self) -> None:
        """Generate.

        The compiler is given paths from the root, so that the stubs import each other as ``clients.proto.NAME_pb2``.
        """
        from grpc_tools import protoc

        target = ROOT if self.editable_mode else self._built()
        (target / FOLDER).mkdir(parents=True, exist_ok=True)
        known = Path(str(importlib.util.find_spec("grpc_tools").origin)).parent / "_proto"
        arguments = [f"-I{ROOT}", f"-I{known}", f"--python_out={target}", f"--grpc_python_out={target}"]
        code = protoc.main(["protoc", *arguments, *(str(ROOT / source) for source in self.get_source_files())])
        if code != 0:
            raise RuntimeError(f"protoc ended with exit code {code}; its message is above")

    def get_source_files(self) -> list[str]:
        """What a source distribution needs."""
        return [str(path.relative_to(ROOT)) for path in sorted((ROOT / FOLDER).glob("*.proto"))]

    def get_output_mapping(self) -> dict[str, str]:
        """Built files that are copies of sources: none."""
        return {}

    def get_outputs(self) -> list[str]:
        """Built files."""
        sources = [Path(source).stem for source in self.get_source_files()]
        stubs = [FOLDER / f"{stem}_{kind}.py" for stem in sources for kind in ("pb2", "pb2_grpc")]
        return [str(self._built() / stub) for stub in stubs]

    def _built(self) -> Path:
        if self.build_lib is None:
            raise RuntimeError("build_stubs was not finalised")
        return Path(self.build_lib)


# After build_py, which would otherwise put stubs of an earlier editable installation over the new ones.
build.sub_commands = [*build.sub_commands, ("build_stubs", None)]
setup(cmdclass={"build_stubs": BuildStubs})
