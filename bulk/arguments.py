"""What ``mogface-bulk`` takes on the command line."""

from __future__ import annotations

import argparse
from pathlib import Path

from bulk.schema import FORMATS, PARQUET

#: The detector's options that have a flag of the same name, as of ``mogface detect``.
OPTIONS = ("score_threshold", "nms_threshold", "max_faces", "order", "min_face_size", "canvas", "landmarks")
_CODES = """exit codes:
  0  done
  1  done, and an image failed: OUTPUT/errors says which
  2  wrong usage
  3  the job did not come to its end: the same command goes on where it was
  130  interrupted; likewise"""


def parser() -> argparse.ArgumentParser:
    """The whole of it."""
    root = argparse.ArgumentParser(
        prog="mogface-bulk",
        description="Faces of a whole collection, by detectors on every core or GPU of a Ray cluster.",
        epilog=_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    root.add_argument("input", metavar="INPUT", help="a folder, a quoted pattern, a file, or a URL such as s3://...")
    root.add_argument("output", metavar="OUTPUT", help="a folder, or a URL of one; an interrupted job goes on there")
    root.add_argument(
        "--archive", type=Path, default=Path("model_store/centerface.mar"), metavar="FILE.mar", help="(%(default)s)"
    )
    form = root.add_argument_group("input and output")
    form.add_argument("--column", metavar="NAME", help="of Parquet input, with the encoded pictures' bytes")
    form.add_argument("--id-column", metavar="NAME", help="of Parquet input, which names a row; else FILE#ROW")
    form.add_argument("--format", choices=FORMATS, default=PARQUET, help="(%(default)s)")
    form.add_argument(
        "--part-images", type=_count, default=256, metavar="N", help="images a file of the output (%(default)s)"
    )
    asked = root.add_argument_group("what is asked; the archive's own values where not given")
    asked.add_argument("--score-threshold", type=float, metavar="0..1")
    asked.add_argument("--nms-threshold", type=float, metavar="0..1")
    asked.add_argument("--max-faces", type=int, metavar="N")
    asked.add_argument("--order", choices=("score", "size"))
    asked.add_argument("--min-face-size", type=float, metavar="PX")
    asked.add_argument("--canvas", metavar="HEIGHTxWIDTH", help="or auto, native")
    asked.add_argument("--landmarks", action=argparse.BooleanOptionalAction)
    where = root.add_argument_group("where it runs")
    where.add_argument("--address", help="of a Ray cluster, as 10.0.0.1:6379, or auto; else this machine alone")
    where.add_argument("--workers", type=_count, metavar="N", help="detectors in all; else what fits")
    where.add_argument("--workers-per-gpu", type=_count, default=1, metavar="N", help="(%(default)s)")
    where.add_argument("--threads", type=_count, metavar="N", help="cores of each detector; else up to 4")
    where.add_argument(
        "--batch", type=_count, metavar="N", help="images read and decoded together; else by the archive"
    )
    return root


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is out of range: expected 1 or more")
    return number
