# pyright: basic
"""A U-Net with group normalisation and a network that transfers styles, as PyTorch modules.

Both take f32 [batch, 3, height, width] of any size from 32x32 on and return an image; the U-Net's
has the size of its input, the other's is rounded to a multiple of four. Imports torch only. Start
reading at :class:`UNet`.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class Residual(nn.Module):
    """Two 3x3 convolutions, each behind GroupNorm and SiLU, added to what came in."""

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.GroupNorm(8, channels_in),
            nn.SiLU(),
            nn.Conv2d(channels_in, channels_out, 3, padding=1),
            nn.GroupNorm(8, channels_out),
            nn.SiLU(),
            nn.Conv2d(channels_out, channels_out, 3, padding=1),
        )
        same = channels_in == channels_out
        self.skip = nn.Identity() if same else nn.Conv2d(channels_in, channels_out, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.skip(x) + self.body(x)


class UNet(nn.Module):
    """A U-Net (2015) of residual blocks, as denoising diffusion models have it, without attention.

    Every level halves the image by a strided convolution; on the way back, it is brought to the
    size of the level above by its nearest pixels, and joined with it along the channels.
    """

    def __init__(self, widths: tuple[int, ...] = (64, 128, 256, 256)) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, widths[0], 3, padding=1)
        above = (widths[0], *widths)
        self.down = nn.ModuleList(map(Residual, above, widths))
        self.halve = nn.ModuleList(nn.Conv2d(w, w, 3, 2, 1) for w in widths[:-1])
        self.middle = Residual(widths[-1], widths[-1])
        joined = [low + high for low, high in zip(widths[1:], widths, strict=False)]
        self.up = nn.ModuleList(map(Residual, joined, widths))
        self.last = nn.Sequential(
            nn.GroupNorm(8, widths[0]), nn.SiLU(), nn.Conv2d(widths[0], 3, 3, padding=1)
        )

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        x = self.first(pixel_values)
        levels: list[torch.Tensor] = []
        for block, halve in zip(self.down, self.halve, strict=False):
            levels.append(block(x))
            x = halve(levels[-1])
        x = self.middle(self.down[-1](x))
        for block, level in zip(reversed(self.up), reversed(levels), strict=True):
            x = functional.interpolate(x, size=level.shape[2:], mode="nearest")
            x = block(torch.cat((x, level), dim=1))
        return self.last(x)


class _Styled(nn.Module):
    """A convolution over an image continued by its mirror image, InstanceNorm, ReLU if wanted."""

    def __init__(
        self, channels: tuple[int, int], kernel: int, stride: int = 1, *, activated: bool = True
    ) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.ReflectionPad2d(kernel // 2),
            nn.Conv2d(*channels, kernel, stride),
            nn.InstanceNorm2d(channels[1], affine=True),
            nn.ReLU() if activated else nn.Identity(),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


class _StyledResidual(nn.Module):
    """Two such convolutions of 3x3, added to what came in."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        same = (channels, channels)
        self.body = nn.Sequential(_Styled(same, 3), _Styled(same, 3, activated=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x)


class StyleTransfer(nn.Module):
    """The network of fast style transfer (2016), with InstanceNorm, known by its style "candy"."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            _Styled((3, 32), 9),
            _Styled((32, 64), 3, 2),
            _Styled((64, 128), 3, 2),
            *(_StyledResidual(128) for _ in range(5)),
            nn.Upsample(scale_factor=2, mode="nearest"),
            _Styled((128, 64), 3),
            nn.Upsample(scale_factor=2, mode="nearest"),
            _Styled((64, 32), 3),
            nn.ReflectionPad2d(4),
            nn.Conv2d(32, 3, 9),
        )

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        return self.layers(pixel_values)
