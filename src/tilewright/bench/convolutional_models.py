# pyright: basic
"""AlexNet, VGG-16 and GoogLeNet as PyTorch modules, as their papers describe them.

Each takes f32 [batch, 3, height, width] and returns logits f32 [batch, classes]; none has its
dropout or auxiliary heads, which inference leaves out. `width` scales every channel count but the
input's and the classes', so that tests can have the topology without half a gigabyte of weights.
Imports torch only. Start reading at :class:`AlexNet`.
"""

from __future__ import annotations

import torch
from torch import nn

CLASSES = 1000  # of ImageNet
# The deviation of an image's bytes. AlexNet and GoogLeNet were trained on bytes, and their response
# normalisation does next to nothing on values around one.
BYTE_DEVIATION = 64.0


class AlexNet(nn.Module):
    """AlexNet (2012) as one tower: five convolutions, three dense layers; images of 224x224."""

    def __init__(self, width: float = 1.0) -> None:
        super().__init__()
        first, second, third, dense = (_scaled(c, width) for c in (96, 256, 384, 4096))
        self.layers = nn.Sequential(
            *_convolution(3, first, 11, stride=4, padding=2),
            # The paper does not divide its alpha of 1e-4 by the number of channels; PyTorch does.
            nn.LocalResponseNorm(5, alpha=5e-4, beta=0.75, k=2.0),
            nn.MaxPool2d(3, 2),
            *_convolution(first, second, 5, padding=2),
            nn.LocalResponseNorm(5, alpha=5e-4, beta=0.75, k=2.0),
            nn.MaxPool2d(3, 2),
            *_convolution(second, third, 3, padding=1),
            *_convolution(third, third, 3, padding=1),
            *_convolution(third, second, 3, padding=1),
            nn.MaxPool2d(3, 2),
            nn.Flatten(),
            *_classifier(second * 6 * 6, dense),
        )
        _initialise(self, BYTE_DEVIATION)

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        return self.layers(pixel_values)


class Vgg16(nn.Module):
    """VGG-16 (2014, configuration D): thirteen 3x3 convolutions, three dense; images of 224x224."""

    def __init__(self, width: float = 1.0) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for count, full in ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)):
            for _ in range(count):
                layers.extend(_convolution(channels, _scaled(full, width), 3, padding=1))
                channels = _scaled(full, width)
            layers.append(nn.MaxPool2d(2, 2))
        classifier = _classifier(channels * 7 * 7, _scaled(4096, width))
        self.layers = nn.Sequential(*layers, nn.Flatten(), *classifier)
        _initialise(self, 1.0)

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        return self.layers(pixel_values)


# Output channels of one Inception module: the 1x1 branch; the 3x3 branch's reduction and
# convolution; the same of the 5x5 branch; the projection behind the pooling. None is a pooling.
_INCEPTIONS = (
    (64, 96, 128, 16, 32, 32),
    (128, 128, 192, 32, 96, 64),
    None,
    (192, 96, 208, 16, 48, 64),
    (160, 112, 224, 24, 64, 64),
    (128, 128, 256, 24, 64, 64),
    (112, 144, 288, 32, 64, 64),
    (256, 160, 320, 32, 128, 128),
    None,
    (256, 160, 320, 32, 128, 128),
    (384, 192, 384, 48, 128, 128),
)


class Inception(nn.Module):
    """One Inception v1 module: four branches over the same pixels, joined along the channels."""

    def __init__(self, channels: int, sizes: tuple[int, ...]) -> None:
        super().__init__()
        one, three_reduction, three, five_reduction, five, projection = sizes
        self.one = nn.Sequential(*_convolution(channels, one, 1))
        self.three = nn.Sequential(
            *_convolution(channels, three_reduction, 1),
            *_convolution(three_reduction, three, 3, padding=1),
        )
        self.five = nn.Sequential(
            *_convolution(channels, five_reduction, 1),
            *_convolution(five_reduction, five, 5, padding=2),
        )
        self.pool = nn.Sequential(
            nn.MaxPool2d(3, 1, padding=1), *_convolution(channels, projection, 1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat((self.one(x), self.three(x), self.five(x), self.pool(x)), dim=1)


class GoogLeNet(nn.Module):
    """GoogLeNet (2014, Inception v1, with 5x5 branches); images of any size from 32x32 on."""

    def __init__(self, width: float = 1.0) -> None:
        super().__init__()
        stem, channels = _scaled(64, width), _scaled(192, width)
        layers: list[nn.Module] = [
            *_convolution(3, stem, 7, stride=2, padding=3),
            nn.MaxPool2d(3, 2, ceil_mode=True),
            nn.LocalResponseNorm(5, alpha=1e-4, beta=0.75, k=1.0),
            *_convolution(stem, stem, 1),
            *_convolution(stem, channels, 3, padding=1),
            nn.LocalResponseNorm(5, alpha=1e-4, beta=0.75, k=1.0),
            nn.MaxPool2d(3, 2, ceil_mode=True),
        ]
        for full in _INCEPTIONS:
            if full is None:
                layers.append(nn.MaxPool2d(3, 2, ceil_mode=True))
                continue
            one, _, three, _, five, projection = sizes = tuple(_scaled(c, width) for c in full)
            layers.append(Inception(channels, sizes))
            channels = one + three + five + projection
        head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES))
        self.layers = nn.Sequential(*layers, *head)
        _initialise(self, BYTE_DEVIATION)

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        return self.layers(pixel_values)


def _scaled(channels: int, width: float) -> int:
    """The channel count at a relative width, at least one."""
    return max(1, round(channels * width))


def _convolution(
    channels_in: int, channels_out: int, kernel: int, *, stride: int = 1, padding: int = 0
) -> tuple[nn.Module, nn.Module]:
    """A convolution with a bias, and its ReLU."""
    return nn.Conv2d(channels_in, channels_out, kernel, stride, padding), nn.ReLU()


def _classifier(features: int, hidden: int) -> tuple[nn.Module, ...]:
    """The three dense layers of AlexNet and VGG."""
    first, second = nn.Linear(features, hidden), nn.Linear(hidden, hidden)
    return first, nn.ReLU(), second, nn.ReLU(), nn.Linear(hidden, CLASSES)


def _initialise(module: nn.Module, magnitude: float) -> None:
    """Random weights under which every layer's values are of the given magnitude.

    PyTorch's own start shrinks them layer by layer, until the logits hardly depend on the image.
    The first convolution does the scaling, for inputs around one.
    """
    scale = magnitude
    with torch.no_grad():
        for layer in module.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu").mul_(scale)
                if layer.bias is not None:
                    nn.init.normal_(layer.bias, std=0.1 * magnitude)
                scale = 1.0
