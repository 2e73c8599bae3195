"""A detector in a process of its own, called by its own threads: nothing serves it.

    python -m load_tests.peers.process FOLDER

FOLDER is a peer's. A line of JSON in ({"clients", "rate", "answers", "pictures" (paths), "seed"}), a line out: its
answers, as loops.Timed. Callers wait in a row for the detector, which is not made for several at once.
"""

from __future__ import annotations

import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from load_tests.peers import detector, loops


def main() -> None:
    """Until the input ends."""
    # What libraries print is no answer.
    output, sys.stdout = sys.stdout, sys.stderr
    found = detector.load(Path(sys.argv[1]))
    row, turn = ThreadPoolExecutor(1), threading.Lock()
    kept: list[object] = []

    def detect(photograph: bytes) -> bytes:
        # A caller in the same process needs no JSON: it is made for the comparison, outside of what is timed.
        faces = row.submit(found.detect, photograph).result()
        with turn:
            kept.append(faces)
            return str(len(kept) - 1).encode()

    output.write("ready\n")
    output.flush()
    for line in sys.stdin:
        asked = json.loads(line)
        kept.clear()
        pictures = [Path(path).read_bytes() for path in asked["pictures"]]
        load = loops.Load(asked["clients"], asked["rate"], asked["answers"])
        timed = loops.run(detect, pictures, load, asked["seed"])
        rows = [asdict(each) | {"body": detector.answer(kept[int(each.body)]).decode("utf-8")} for each in timed]
        output.write(json.dumps(rows) + "\n")
        output.flush()


if __name__ == "__main__":
    main()
