# pyright: basic
"""EfficientViT-B1 as a PyTorch module: convolutions, and attention that is linear in the pixels.

It takes f32 [batch, 3, height, width] of any size from 32x32 on and returns logits f32 [batch,
classes]. The paper is Cai et al., EfficientViT: Multi-Scale Linear Attention (2023). Imports torch
only. Start reading at :class:`EfficientViT`.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

CLASSES = 1000  # of ImageNet
SMALLEST = 1e-15  # added to what is divided by


def _convolution(
    channels_in: int, channels_out: int, taps: int, stride: int = 1, groups: int = 1,
    active: bool = True,
) -> nn.Sequential:  # fmt: skip
    layers: list[nn.Module] = [
        nn.Conv2d(channels_in, channels_out, taps, stride, taps // 2, groups=groups, bias=False),
        nn.BatchNorm2d(channels_out),
    ]
    return nn.Sequential(*layers, *([nn.Hardswish()] if active else []))


def _inverted(channels_in: int, channels_out: int, stride: int, expand: int) -> nn.Sequential:
    """Up to more channels, a depthwise convolution, down again; of 1, only the last two."""
    wide = channels_in * expand
    up = [_convolution(channels_in, wide, 1)] if expand > 1 else []
    depthwise = _convolution(wide, wide, 3, stride, wide)
    return nn.Sequential(*up, depthwise, _convolution(wide, channels_out, 1, active=False))


class _Added(nn.Module):
    """What a module makes of its input, added to it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x)


class LinearAttention(nn.Module):
    """Attention with max(x, 0) in place of the exponential, over pixels and over their windows.

    Keys meet values first, so that the work grows with the pixels, not with their square.
    """

    def __init__(self, channels: int, head: int = 16, taps: int = 5) -> None:
        super().__init__()
        heads = channels // head
        wide = 3 * heads * head
        self.head = head
        self.mixed = nn.Conv2d(channels, wide, 1, bias=False)
        self.windows = nn.Sequential(
            nn.Conv2d(wide, wide, taps, padding=taps // 2, groups=wide, bias=False),
            nn.Conv2d(wide, wide, 1, groups=3 * heads, bias=False),
        )
        self.joined = _convolution(2 * heads * head, channels, 1, active=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed = self.mixed(x)
        all_heads = torch.cat([mixed, self.windows(mixed)], 1)
        batch, _, height, width = all_heads.shape
        parts = all_heads.reshape(batch, -1, 3 * self.head, height * width)
        query, key, value = parts.chunk(3, 2)
        query, key = functional.relu(query), functional.relu(key)
        # A value of one more sums up the weights.
        value = functional.pad(value, (0, 0, 0, 1), value=1.0)
        seen = value @ key.transpose(-1, -2) @ query
        seen = seen[:, :, :-1] / (seen[:, :, -1:] + SMALLEST)
        return self.joined(seen.reshape(batch, -1, height, width))


class EfficientViT(nn.Module):
    """EfficientViT, by default B1."""

    def __init__(
        self,
        widths: tuple[int, ...] = (16, 32, 64, 128, 256),
        depths: tuple[int, ...] = (1, 2, 3, 3, 4),
        last: tuple[int, int] = (1536, 1600),
    ) -> None:
        super().__init__()
        first, *others = widths
        stem = [_Added(_inverted(first, first, 1, 1)) for _ in range(depths[0])]
        stages: list[nn.Module] = [_convolution(3, first, 3, 2), *stem]
        before = first
        for number, (width, depth) in enumerate(zip(others, depths[1:], strict=True)):
            stages.append(_inverted(before, width, 2, 4))
            attends = number >= 2
            for _ in range(depth if attends else depth - 1):
                if attends:
                    stages.append(_Added(LinearAttention(width)))
                stages.append(_Added(_inverted(width, width, 1, 4)))
            before = width
        self.stages = nn.Sequential(*stages)
        self.head = nn.Sequential(
            _convolution(before, last[0], 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(last[0], last[1], bias=False), nn.LayerNorm(last[1]), nn.Hardswish(),
            nn.Linear(last[1], CLASSES),
        )  # fmt: skip

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        return self.head(self.stages(pixel_values))
