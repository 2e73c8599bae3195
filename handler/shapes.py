"""The shapes that an archive's graphs meet: of these the profiles are made, and by these they are checked."""

from __future__ import annotations

from handler.anchors import STRIDES
from handler.detectors import centerface, landmarks, mogface
from handler.errors import ConfigError
from handler.geometry import Canvas
from handler.plans import Shape

#: The graphs of each detector.
GRAPHS = {"mogface": mogface.GRAPHS, "centerface": (centerface.GRAPH,)}
#: Channels of what the trunk gives and the score head takes, and of what the box head takes.
FEATURES, CONTEXT = 256, 512
#: MogFace's heads and the channels of their input, whose name comes first.
_HEADS = {"score_head": ("level", FEATURES), "box_head": ("context", CONTEXT)}


def levels(canvas: Canvas) -> tuple[tuple[int, int], ...]:
    """Height and width of MogFace's feature maps, finest first."""
    return tuple((-(-canvas.height // stride), -(-canvas.width // stride)) for stride in STRIDES)


def inputs(detector: str, graph: str, canvas: Canvas) -> tuple[str, tuple[Shape, ...]]:
    """What a graph is given for one image of a canvas.

    Args:
        detector: whose archive it is: beside MogFace, CenterFace sees crops of faces, not canvases.
        graph: ``trunk``, ``score_head``, ``box_head`` or ``centerface``.
        canvas: of the image.

    Returns:
        The input's name and the shapes it takes, one a pyramid level where there are levels, the batch left out.

    Raises:
        ConfigError: no such graph.
    """
    if graph in _HEADS:
        name, channels = _HEADS[graph]
        return name, tuple((channels, height, width) for height, width in levels(canvas))
    if graph == centerface.GRAPH and detector == "mogface":
        return "image", ((landmarks.SIDE, landmarks.SIDE, 3),)
    if graph in ("trunk", centerface.GRAPH):
        return "image", ((canvas.height, canvas.width, 3),)
    raise ConfigError(f"graph is {graph!r}: expected trunk, {', '.join(_HEADS)} or {centerface.GRAPH}")
