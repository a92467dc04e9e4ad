# pyright: basic
"""YOLOv4 and YOLOX-Nano as PyTorch modules, as their papers describe them.

Both take f32 [batch, 3, height, width] whose height and width are multiples of 32 and return one
row for each anchor or cell of three levels, f32 [batch, cells, 5 + classes]: the box, the certainty
of an object, the classes. Choosing among boxes is left out. Imports torch only. Start reading at
:class:`YoloX`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.nn import functional

CLASSES = 80  # of COCO
LEVELS = (8, 16, 32)  # pixels from one cell to the next


class Block(nn.Sequential):
    """A convolution, its normalisation and an activation."""

    def __init__(
        self, channels_in: int, channels_out: int, taps: int, stride: int = 1, groups: int = 1,
        activation: Callable[[], nn.Module] = nn.SiLU,
    ) -> None:  # fmt: skip
        super().__init__(
            nn.Conv2d(
                channels_in, channels_out, taps, stride, taps // 2, groups=groups, bias=False
            ),
            nn.BatchNorm2d(channels_out),
            activation(),
        )


class SpatialPyramid(nn.Module):
    """What came in beside its maxima over windows of three sizes, along the channels."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pooled = [functional.max_pool2d(x, taps, 1, taps // 2) for taps in (5, 9, 13)]
        return torch.cat([x, *pooled], 1)


# ---------------------------------------------------------------- YOLOX


def _separable(channels_in: int, channels_out: int, stride: int = 1) -> nn.Module:
    """A depthwise 3x3 convolution and a pointwise one."""
    depthwise = Block(channels_in, channels_in, 3, stride, groups=channels_in)
    return nn.Sequential(depthwise, Block(channels_in, channels_out, 1))


class _Bottleneck(nn.Module):
    """Down to some channels and up again, added to what came in if ``residual``."""

    def __init__(self, channels: int, residual: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(Block(channels, channels, 1), _separable(channels, channels))
        self.residual = residual

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x) if self.residual else self.body(x)


class _CrossStage(nn.Module):
    """One half of the channels passes bottlenecks, the other goes around them."""

    def __init__(self, channels_in: int, channels_out: int, count: int, residual: bool) -> None:
        super().__init__()
        half = channels_out // 2
        blocks = [_Bottleneck(half, residual) for _ in range(count)]
        self.through = nn.Sequential(Block(channels_in, half, 1), *blocks)
        self.around = Block(channels_in, half, 1)
        self.joined = Block(channels_out, channels_out, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.joined(torch.cat([self.through(x), self.around(x)], 1))


class _YoloXHead(nn.Module):
    """Boxes, certainty and classes of one level, by branches of their own."""

    def __init__(self, channels_in: int, channels: int) -> None:
        super().__init__()
        self.stem = Block(channels_in, channels, 1)
        self.classes = nn.Sequential(
            _separable(channels, channels), _separable(channels, channels),
            nn.Conv2d(channels, CLASSES, 1),
        )  # fmt: skip
        self.region = nn.Sequential(_separable(channels, channels), _separable(channels, channels))
        self.box = nn.Conv2d(channels, 4, 1)
        self.certainty = nn.Conv2d(channels, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        region = self.region(x)
        certainty, classes = self.certainty(region), self.classes(x)
        return torch.cat([self.box(region), certainty.sigmoid(), classes.sigmoid()], 1)


class YoloX(nn.Module):
    """YOLOX (2021), by default its smallest: a quarter of the channels, depthwise convolutions."""

    def __init__(self, width: int = 16, depth: int = 1) -> None:
        super().__init__()
        c1, c2, c3, c4, c5 = (width * 2**power for power in range(5))
        self.stem = Block(12, c1, 3)
        self.dark = nn.ModuleList(
            nn.Sequential(_separable(low, high, 2), _CrossStage(high, high, count, True))
            for low, high, count in ((c1, c2, depth), (c2, c3, 3 * depth), (c3, c4, 3 * depth))
        )
        self.deepest = nn.Sequential(
            _separable(c4, c5, 2), Block(c5, c5 // 2, 1), SpatialPyramid(), Block(2 * c5, c5, 1),
            _CrossStage(c5, c5, depth, False),
        )  # fmt: skip
        self.narrow = nn.ModuleList((Block(c5, c4, 1), Block(c4, c3, 1)))
        self.upward = nn.ModuleList(
            (_CrossStage(2 * c4, c4, depth, False), _CrossStage(2 * c3, c3, depth, False))
        )
        self.halve = nn.ModuleList((_separable(c3, c3, 2), _separable(c4, c4, 2)))
        self.downward = nn.ModuleList(
            (_CrossStage(2 * c3, c4, depth, False), _CrossStage(2 * c4, c5, depth, False))
        )
        self.heads = nn.ModuleList(_YoloXHead(channels, c3) for channels in (c3, c4, c5))

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        x = pixel_values
        corners = [x[..., row::2, column::2] for column in (0, 1) for row in (0, 1)]
        x = self.stem(torch.cat(corners, 1))
        levels: list[torch.Tensor] = []
        for dark in self.dark:
            x = dark(x)
            levels.append(x)
        _, fine, middle = levels
        narrow = self.narrow[0](self.deepest(x))
        middle = self.upward[0](torch.cat([_doubled(narrow), middle], 1))
        thin = self.narrow[1](middle)
        fine = self.upward[1](torch.cat([_doubled(thin), fine], 1))
        middle = self.downward[0](torch.cat([self.halve[0](fine), thin], 1))
        coarse = self.downward[1](torch.cat([self.halve[1](middle), narrow], 1))
        found = [
            _decoded(head(level), stride)
            for head, level, stride in zip(self.heads, (fine, middle, coarse), LEVELS, strict=True)
        ]
        return torch.cat(found, 1)


def _doubled(x: torch.Tensor) -> torch.Tensor:
    return functional.interpolate(x, scale_factor=2.0, mode="nearest")


def _decoded(x: torch.Tensor, stride: int) -> torch.Tensor:
    """[batch, values, rows, columns] to [batch, cells, values], with boxes in pixels."""
    rows, columns = torch.arange(x.shape[2]), torch.arange(x.shape[3])
    grid = torch.stack(torch.meshgrid(columns, rows, indexing="xy"), -1).reshape(1, -1, 2)
    x = x.flatten(2).transpose(1, 2)
    centre, size = (x[..., :2] + grid) * stride, x[..., 2:4].exp() * stride
    return torch.cat([centre, size, x[..., 4:]], -1)


# ---------------------------------------------------------------- YOLOv4


def _mish(channels_in: int, channels_out: int, taps: int, stride: int = 1) -> Block:
    return Block(channels_in, channels_out, taps, stride, activation=nn.Mish)


def _leaky(channels_in: int, channels_out: int, taps: int, stride: int = 1) -> Block:
    return Block(channels_in, channels_out, taps, stride, activation=lambda: nn.LeakyReLU(0.1))


class _DarkResidual(nn.Module):
    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.body = nn.Sequential(_mish(channels, inner, 1), _mish(inner, channels, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x)


class _DarkStage(nn.Module):
    """Half the image, then residual blocks of which a part of the channels goes around."""

    def __init__(self, channels: int, wide: int, count: int, part: int) -> None:
        super().__init__()
        self.halve = _mish(channels, wide, 3, 2)
        self.around = _mish(wide, part, 1)
        inner = wide // 2
        blocks = [_DarkResidual(part, inner) for _ in range(count)]
        self.through = nn.Sequential(_mish(wide, part, 1), *blocks, _mish(part, part, 1))
        self.joined = _mish(2 * part, wide, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.halve(x)
        return self.joined(torch.cat([self.through(x), self.around(x)], 1))


def _five(channels_in: int, channels: int) -> nn.Sequential:
    """Five convolutions of one and nine taps in turn."""
    wide = 2 * channels
    return nn.Sequential(
        _leaky(channels_in, channels, 1), _leaky(channels, wide, 3), _leaky(wide, channels, 1),
        _leaky(channels, wide, 3), _leaky(wide, channels, 1),
    )  # fmt: skip


class YoloV4(nn.Module):
    """YOLOv4 (2020): CSPDarknet53, a spatial pyramid, paths up and down, three heads."""

    def __init__(self, anchors: int = 3, width: int = 32) -> None:
        super().__init__()
        self.anchors = anchors
        c1, c2, c3, c4, c5, c6 = (width * 2**power for power in range(6))
        self.stem = _mish(3, c1, 3)
        self.stages = nn.ModuleList(
            (
                _DarkStage(c1, c2, 1, c2),
                _DarkStage(c2, c3, 2, c2),
                _DarkStage(c3, c4, 8, c3),
                _DarkStage(c4, c5, 8, c4),
                _DarkStage(c5, c6, 4, c5),
            )
        )
        self.before = nn.Sequential(_leaky(c6, c5, 1), _leaky(c5, c6, 3), _leaky(c6, c5, 1))
        self.pyramid = SpatialPyramid()
        self.behind = nn.Sequential(_leaky(4 * c5, c5, 1), _leaky(c5, c6, 3), _leaky(c6, c5, 1))
        self.narrow = nn.ModuleList((_leaky(c5, c4, 1), _leaky(c4, c3, 1)))
        self.side = nn.ModuleList((_leaky(c5, c4, 1), _leaky(c4, c3, 1)))
        self.upward = nn.ModuleList((_five(c5, c4), _five(c4, c3)))
        self.halve = nn.ModuleList((_leaky(c3, c4, 3, 2), _leaky(c4, c5, 3, 2)))
        self.downward = nn.ModuleList((_five(c5, c4), _five(c6, c5)))
        values = anchors * (5 + CLASSES)
        self.heads = nn.ModuleList(
            nn.Sequential(_leaky(c, 2 * c, 3), nn.Conv2d(2 * c, values, 1)) for c in (c3, c4, c5)
        )

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        x = self.stem(pixel_values)
        levels: list[torch.Tensor] = []
        for stage in self.stages:
            x = stage(x)
            levels.append(x)
        fine, middle, coarse = levels[2:]
        coarse = self.behind(self.pyramid(self.before(coarse)))
        above = _doubled(self.narrow[0](coarse))
        middle = self.upward[0](torch.cat([self.side[0](middle), above], 1))
        above = _doubled(self.narrow[1](middle))
        fine = self.upward[1](torch.cat([self.side[1](fine), above], 1))
        middle = self.downward[0](torch.cat([self.halve[0](fine), middle], 1))
        coarse = self.downward[1](torch.cat([self.halve[1](middle), coarse], 1))
        return torch.cat(self._found((fine, middle, coarse)), 1)

    def _found(self, levels: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The boxes of each level, one for every anchor of every cell."""
        found: list[torch.Tensor] = []
        for head, level, stride in zip(self.heads, levels, LEVELS, strict=True):
            x = head(level)
            values = 5 + CLASSES
            x = x.view(x.shape[0], self.anchors, values, x.shape[2], x.shape[3])
            each = [_decoded(x[:, anchor], stride) for anchor in range(self.anchors)]
            boxes = torch.cat(each, 1)
            found.append(torch.cat([boxes[..., :4], boxes[..., 4:].sigmoid()], -1))
        return found
