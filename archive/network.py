"""The MogFace network in PyTorch, as the three parts that run one after another.

``Trunk`` turns images into six levels of features, ``ScoreHead`` a level into scores, and ``BoxHead`` what
the score head saw into boxes. The parts are shared by all levels, so a level whose scores are all low
needs no box head. Names of submodules are those of the released state dict; the parts of it
that never act are not built (see :mod:`archive.checkpoint`).

Architecture: MogFace, arXiv:2103.11139; the released variant has ResNet-101, a pyramid with strides 4 to 128,
an SSH context module and two deep heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name

#: Names of the trunk's outputs, finest first.
LEVELS = ("p2", "p3", "p4", "p5", "p6", "p7")
#: Mean and deviation of the released model's pixels, RGB, 0..255.
MEAN = (123.675, 116.28, 103.53)
DEVIATION = (58.395, 57.120003, 57.375)
_FEATURES = 256
_CONTEXT = 512
_GROUPS = 16


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions beside a shortcut; four times as many channels leave as ``width``."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out)
        self.downsample: nn.Module = nn.Identity()
        if channels != out or stride != 1:
            self.downsample = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        """[N, channels, h, w] -> [N, 4 width, ceil(h / stride), ceil(w / stride)]."""
        y = torch.relu(self.bn1(self.conv1(x)))
        y = torch.relu(self.bn2(self.conv2(y)))
        return torch.relu(self.bn3(self.conv3(y)) + self.downsample(x))


class Backbone(nn.Module):
    """ResNet-101 without its classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = _stage(64, 64, blocks=3, stride=1)
        self.layer2 = _stage(256, 128, blocks=4, stride=2)
        self.layer3 = _stage(512, 256, blocks=23, stride=2)
        self.layer4 = _stage(1024, 512, blocks=3, stride=2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """[N, 3, H, W] -> four maps of 256, 512, 1024 and 2048 channels at strides 4, 8, 16 and 32."""
        x = torch.relu(self.bn1(self.conv1(x)))
        c2 = self.layer1(F.max_pool2d(x, 3, 2, padding=1))
        c3 = self.layer2(c2)
        c4 = self.layer3(c3)
        return c2, c3, c4, self.layer4(c4)


def _stage(channels: int, width: int, blocks: int, stride: int) -> nn.Sequential:
    first = Bottleneck(channels, width, stride)
    return nn.Sequential(first, *(Bottleneck(4 * width, width, 1) for _ in range(blocks - 1)))


class Fusion(nn.Module):
    """A coarser level added to a lateral of ``channels``."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.main_conv = nn.Conv2d(channels, _FEATURES, 1)

    def forward(self, coarse: Tensor, lateral: Tensor) -> Tensor:
        """[N, 256, ceil(h / 2), ceil(w / 2)] and [N, channels, h, w] -> [N, 256, h, w]."""
        main: Tensor = self.main_conv(lateral)
        up = F.interpolate(coarse, scale_factor=2.0, mode="bilinear", align_corners=False)
        # Cropped whether it must be or not: a condition would be traced away, or fail in TensorRT.
        return up[:, :, : main.shape[2], : main.shape[3]] + main


class Pyramid(nn.Module):
    """Six levels of 256 channels out of the backbone's four maps."""

    def __init__(self) -> None:
        super().__init__()
        self.c6 = _descent(2048, 512, 512)
        self.c7 = _descent(512, 128, _FEATURES)
        self.p2_lat, self.p3_lat, self.p4_lat = _conv3(_FEATURES), _conv3(_FEATURES), _conv3(_FEATURES)
        self.c5_lat, self.c6_lat, self.c7_lat = _conv3(2048), _conv3(512), _conv3(_FEATURES)
        self.ff_c5_c4, self.ff_c4_c3, self.ff_c3_c2 = Fusion(1024), Fusion(512), Fusion(256)

    def forward(self, c2: Tensor, c3: Tensor, c4: Tensor, c5: Tensor) -> tuple[Tensor, ...]:
        """Maps at strides 4, 8, 16, 32 -> levels at strides 4, 8, 16, 32, 64, 128."""
        c6 = self.c6(c5)
        c7 = self.c7(c6)
        p5 = self.c5_lat(c5)
        # The next level gets the sum, before the 3x3 convolution that its own heads see.
        p4 = self.ff_c5_c4(p5, c4)
        p3 = self.ff_c4_c3(p4, c3)
        p2 = self.ff_c3_c2(p3, c2)
        return self.p2_lat(p2), self.p3_lat(p3), self.p4_lat(p4), p5, self.c6_lat(c6), self.c7_lat(c7)


def _conv3(channels: int, out: int = _FEATURES, dilation: int = 1) -> nn.Conv2d:
    return nn.Conv2d(channels, out, 3, padding=dilation, dilation=dilation)


def _descent(channels: int, middle: int, out: int) -> nn.Sequential:
    """To half the size: a narrowing 1x1 convolution, then a 3x3 one of stride 2."""
    narrow = (nn.Conv2d(channels, middle, 1), nn.BatchNorm2d(middle), nn.ReLU())
    halve = (nn.Conv2d(middle, out, 3, 2, padding=1), nn.BatchNorm2d(out), nn.ReLU())
    return nn.Sequential(*narrow, *halve)


class Trunk(nn.Module):
    """Images to levels. The normalisation is inside and must stay FP32: its results are about 0.01."""

    mean: Tensor
    deviation: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.backbone = Backbone()
        self.fpn = Pyramid()
        self.register_buffer("mean", torch.tensor(MEAN), persistent=False)
        self.register_buffer("deviation", torch.tensor(DEVIATION), persistent=False)

    def forward(self, image: Tensor, fraction: Tensor | None = None) -> tuple[Tensor, ...]:
        """Levels of a batch of images of one size.

        Args:
            image: [N, H, W, 3] uint8 RGB.
            fraction: float32 that broadcasts to ``image`` and is added to it; zeros where None.

        Returns:
            p2 .. p7: each [N, 256, ceil(H / s), ceil(W / s)] float32 for strides s of 4 .. 128.
        """
        levels: tuple[Tensor, ...] = self.fpn(*self.backbone(self.normalise(image, fraction)))
        return levels

    def normalise(self, image: Tensor, fraction: Tensor | None = None) -> Tensor:
        """What the backbone sees: [N, 3, H, W] float32; arguments as for :meth:`forward`."""
        pixels = image.float()
        if fraction is not None:
            pixels = pixels + fraction
        # The second division by 255 is how the released weights were trained.
        return ((pixels - self.mean) / self.deviation / 255.0).permute(0, 3, 1, 2)


class Context(nn.Module):
    """SSH context: three receptive fields side by side."""

    def __init__(self) -> None:
        super().__init__()
        half, quarter = _CONTEXT // 2, _CONTEXT // 4
        self.conv1 = _conv3(_FEATURES, half)
        self.conv2 = _conv3(_FEATURES, quarter, dilation=2)
        self.conv2_1 = _conv3(quarter, quarter)
        self.conv2_2 = _conv3(quarter, quarter, dilation=2)
        self.conv2_2_1 = _conv3(quarter, quarter)

    def forward(self, x: Tensor) -> Tensor:
        """[N, 256, h, w] -> [N, 512, h, w]."""
        near = torch.relu(self.conv1(x))
        shared = torch.relu(self.conv2(x))
        middle = torch.relu(self.conv2_1(shared))
        far = torch.relu(self.conv2_2_1(torch.relu(self.conv2_2(shared))))
        return torch.cat([near, middle, far], dim=1)


class DeepHead(nn.Module):
    """Four steps of convolution, GroupNorm and ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = _conv3(_CONTEXT, _CONTEXT)
        self.gn1, self.gn2, self.gn3, self.gn4 = (nn.GroupNorm(_GROUPS, _CONTEXT) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """[N, 512, h, w] -> the same shape."""
        # One convolution serves all four steps: so it is in the released network.
        for norm in (self.gn1, self.gn2, self.gn3, self.gn4):
            x = torch.relu(norm(self.conv1(x)))
        return x


class ScoreHead(nn.Module):
    """A level to its scores, and to the context that its box head needs."""

    def __init__(self) -> None:
        super().__init__()
        self.conv_SSH = Context()
        self.deep_cls_head = DeepHead()
        self.pred_cls = _conv3(_CONTEXT, 1)

    def forward(self, level: Tensor) -> tuple[Tensor, Tensor]:
        """[N, 256, h, w] -> scores [N, h * w] in 0..1, row by row, and context [N, 512, h, w]; float32."""
        context = self.conv_SSH(level)
        return torch.sigmoid(self.pred_cls(self.deep_cls_head(context))).flatten(1), context


class BoxHead(nn.Module):
    """A level's context to its boxes."""

    def __init__(self) -> None:
        super().__init__()
        self.deep_loc_head = DeepHead()
        self.pred_loc = _conv3(_CONTEXT, 4)

    def forward(self, context: Tensor) -> Tensor:
        """[N, 512, h, w] -> offsets [N, h * w, 4] float32, in the order of the scores."""
        offsets: Tensor = self.pred_loc(self.deep_loc_head(context))
        return offsets.flatten(2).transpose(1, 2)


class Network(NamedTuple):
    """The three parts, in evaluation mode."""

    trunk: Trunk
    score_head: ScoreHead
    box_head: BoxHead

    @classmethod
    def empty(cls) -> Network:
        """Shapes only, on torch's ``meta`` device."""
        with torch.device("meta"):
            return cls(Trunk(), ScoreHead(), BoxHead())

    @classmethod
    def of(cls, state: Mapping[str, Tensor]) -> Network:
        """The network with these weights, which it shares.

        Args:
            state: as :func:`archive.checkpoint.load` gives it; keys of no part are left alone.
        """
        network = cls(Trunk(), ScoreHead(), BoxHead())
        for part, prefix in zip(network, PREFIXES, strict=True):
            part.load_state_dict({key: state[prefix + key] for key in part.state_dict()}, assign=True)
            part.eval().requires_grad_(False)
        return network


#: What the keys of each part's state dict are preceded by in the released file.
PREFIXES = ("", "pred_net.", "pred_net.")
