"""Several MIG instances under one TorchServe, by docs/clusters.md; nvidia-smi and the instances are pretended."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path

from archive import properties
from archive.configure import Plan, configure, read_archive
from archive.server import Server
from handler import device
from tests.serving.conftest import ROOT, Start

#: What the front end asks the driver: one card, whatever it is cut into.
NVIDIA_SMI = "#!/bin/sh\nprintf 'index\\n0\\n'\n"


def test_workers_share_out_the_instances_that_the_front_end_cannot_see(
    start: Start, centerface_mar: Path, tmp_path: Path
) -> None:
    (tmp_path / "nvidia-smi").write_text(NVIDIA_SMI, encoding="utf-8")
    (tmp_path / "nvidia-smi").chmod(0o755)
    plan = Plan("a100", 2, mig="3g.20gb", workers=1)
    configured = properties.parse(
        configure(properties.read(ROOT / "config.properties"), [read_archive(centerface_mar)], plan)
    )
    server = start(
        "centerface",
        changes={key: configured[key] for key in ("models", "number_of_gpu", "job_queue_size")},
        env={
            "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
            "MOGFACE_VISIBLE_DEVICES": "MIG-3eb87630-93d5-b2b6-b8ff-9b359caf4ee2,MIG-1cfb4a63-6f7b-5b4b-8a37-9dd5b1f2",
            "OMP_NUM_THREADS": "1",
        },
    )
    assert device.counts(2, server._temp / device.claims_folder().name) == [1, 1]
    assert sorted(_claimed(server, 2)) == [0, 1]


def _claimed(server: Server, workers: int) -> list[int]:
    """Of each worker's line at its start, its claim."""
    log, deadline = server.folder / "logs" / "model_log.log", time.monotonic() + 30
    while len(found := re.findall(r'\{"event": "ready".*\}', log.read_text(errors="replace"))) < workers:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return [json.loads(line)["gpu_claimed"] for line in found]
