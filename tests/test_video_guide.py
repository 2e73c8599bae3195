"""The commands of docs/video.md, run as they stand."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import av
import pytest
from PIL import Image

from archive.server import Server
from tests.films import film
from tests.serving.conftest import ROOT, centerface_mar, server, start, workspace
from tests.test_guides import environment

__all__ = ["centerface_mar", "server", "start", "workspace"]

GUIDE = (ROOT / "docs" / "video.md").read_text(encoding="utf-8")


def test_the_guides_commands(server: Server, tmp_path: Path) -> None:
    film(tmp_path / "door.mp4", count=20)
    (tmp_path / "frames").mkdir()
    Image.new("RGB", (64, 64)).save(tmp_path / "frames" / "1.png")
    key_file = tmp_path / "key_file.json"
    key_file.write_text((server.folder / "key_file.json").read_text())
    blocks = re.findall(r"^```sh\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 2
    told = environment(server) | {"MOGFACE_ADDRESS": f"grpc://127.0.0.1:{server.values['grpc_inference_port']}"}
    outputs = []
    for block in blocks:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block],
            cwd=tmp_path,
            env=told,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    lines = [json.loads(line) for line in (tmp_path / "faces.jsonl").read_text().splitlines()]
    assert [line["frame"] for line in lines] == [0, 5, 10, 15]
    [shown] = re.findall(r"^```json\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)
    assert list(json.loads(shown.replace("[...]", "[]"))) == list(lines[1])
    live = [json.loads(line) for line in outputs[0].splitlines()]
    assert {line["source"] for line in live} == {"door.mp4", "frames"}
    assert len(list((tmp_path / "crops" / "door").iterdir())) >= 3
    for name in ("annotated", "hidden"):
        with av.open(str(tmp_path / name / "door.mp4")) as container:
            assert next(container.decode(video=0)).width == 320


@pytest.mark.parametrize("link", re.findall(r"\]\(([^)#]+)", GUIDE))
def test_links_lead_somewhere(link: str) -> None:
    assert (ROOT / "docs" / link).exists()
