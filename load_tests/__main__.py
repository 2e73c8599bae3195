"""``python -m load_tests VERB``."""

from __future__ import annotations

import argparse
from pathlib import Path

from load_tests import network, overhead, rest


def main() -> None:
    """Run the verb that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m load_tests", description="Measurements of this project.")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    verb = verbs.add_parser("overhead", help="what the handler costs outside the network")
    verb.add_argument("--mar", type=Path, default=Path("model_store/centerface.mar"))
    verb.add_argument("--rounds", type=int, default=200)
    verb.set_defaults(run=lambda given: overhead.run(given.mar, given.rounds))

    verb = verbs.add_parser("rest", help="time to ready, memory, answers a second by connections")
    verb.add_argument("--config", type=Path, default=Path("config.properties"))
    verb.add_argument("--model", default="centerface")
    verb.add_argument("--connections", type=int, nargs="+", default=[1, 8, 32])
    verb.add_argument("--seconds", type=float, default=8.0, help="of a round")
    verb.add_argument("--rounds", type=int, default=3, help="for each number of connections; medians are shown")
    verb.set_defaults(
        run=lambda given: rest.run(given.config, given.model, given.connections, given.seconds, given.rounds)
    )

    verb = verbs.add_parser("network", help="MogFace's graphs on ONNX Runtime against ModelScope's eager network")
    verb.add_argument("--rounds", type=int, default=5, help="of each contender; the medians are shown")
    verb.add_argument("--height", type=int, default=480, help="of the image, px")
    verb.add_argument("--width", type=int, default=640, help="of the image, px")
    verb.set_defaults(run=lambda given: network.run(given.height, given.width, given.rounds))

    given = parser.parse_args()
    given.run(given)


if __name__ == "__main__":
    main()
