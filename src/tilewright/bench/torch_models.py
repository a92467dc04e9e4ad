# pyright: basic
"""The models under test as PyTorch modules with random weights, by name.

A model file written by `scripts/export_models.py` carries the name of its module in its metadata
(`tilewright.factory`), so that the bench can time PyTorch on exactly the network that the file
holds. Needs `torch` and `transformers`; is loaded only when asked for.
Start reading at :func:`build`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
import transformers

from tilewright.bench.convolutional_models import AlexNet, GoogLeNet, Vgg16
from tilewright.bench.detectors import YoloV4, YoloX
from tilewright.bench.efficient_vit import EfficientViT
from tilewright.bench.image_to_image import StyleTransfer, UNet

SEED = 20261121  # of the weights

TEXT_AXES: Mapping[int, str] = {0: "batch", 1: "sequence"}
IMAGE_AXES: Mapping[int, str] = {0: "batch", 2: "height", 3: "width"}
BATCH_AXES: Mapping[int, str] = {0: "batch"}
SOUND_AXES: Mapping[int, str] = {0: "batch", 1: "samples"}
FIXED_IMAGE_SIZE = 224  # pixels, of models that take no other
SPECTROGRAM = (80, 3000)  # bands and frames of the half minute that Whisper hears


@dataclass(frozen=True)
class TorchModel:
    """A module, the names of what goes in and comes out, and example inputs to trace it with.

    `axes` maps the dynamic axes of every input to the names of their dimensions. Images are as high
    and wide as multiples of `multiple`.
    """

    name: str
    module: torch.nn.Module
    input_names: tuple[str, ...]
    output_name: str
    axes: Mapping[int, str]
    multiple: int = 1

    def inputs(self, sizes: Mapping[str, int]) -> tuple[torch.Tensor, ...]:
        """Seeded random inputs, by what the model takes.

        Token ids and their like are int64 [batch, sequence]; images f32 [batch, 3, height, width];
        sound f32 [batch, samples], or [batch, bands, frames]. Sizes of dimensions that the model
        does not have are ignored, those of images rounded up to what the model takes.
        """
        generator = torch.Generator().manual_seed(SEED)
        if self.axes == TEXT_AXES:
            shape = (sizes["batch"], sizes["sequence"])
            ids = torch.randint(0, 1000, shape, generator=generator)
            return (ids, torch.ones_like(ids), torch.zeros_like(ids))[: len(self.input_names)]
        fixed = {
            "pixel_values": (3, FIXED_IMAGE_SIZE, FIXED_IMAGE_SIZE),
            "input_features": SPECTROGRAM,
            "input_values": (1,),
        }[self.input_names[0]]
        shape = tuple(
            sizes[self.axes[axis]] if axis in self.axes else size
            for axis, size in enumerate((1, *fixed))
        )
        if self.multiple > 1:
            unit = self.multiple
            shape = (*shape[:2], *(-(-size // unit) * unit for size in shape[2:]))
        return (torch.randn(shape, generator=generator),)


class _Bert(torch.nn.Module):
    """BERT-like encoders: three inputs, the last hidden state out."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor
    ) -> torch.Tensor:
        return self.inner(
            input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids
        ).last_hidden_state


class _Gpt2(torch.nn.Module):
    """GPT-2 without its cache: two inputs, the last hidden state out."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.inner(
            input_ids=input_ids, attention_mask=attention_mask, use_cache=False
        ).last_hidden_state


class _VisionTransformer(torch.nn.Module):
    """ViT at any image size: the position embedding is resized to the image's grid of patches."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        return self.inner(pixel_values, interpolate_pos_encoding=True).last_hidden_state


class _Result(torch.nn.Module):
    """Networks with one input, an image or sound, and one of their results by its name."""

    def __init__(self, inner: torch.nn.Module, name: str) -> None:
        super().__init__()
        self.inner = inner
        self.name = name

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        return getattr(self.inner(data), self.name)


def _image(inner: torch.nn.Module) -> torch.nn.Module:
    return _Result(inner, "logits")


def _sound(inner: torch.nn.Module) -> torch.nn.Module:
    return _Result(inner, "last_hidden_state")


def _bert(layers: int) -> torch.nn.Module:
    config = transformers.BertConfig(num_hidden_layers=layers)
    return _Bert(transformers.BertModel(config, add_pooling_layer=False))


def _albert(width: int, heads: int, layers: int) -> torch.nn.Module:
    config = transformers.AlbertConfig(
        hidden_size=width,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
    )
    return _Bert(transformers.AlbertModel(config, add_pooling_layer=False))


def _bert_large() -> torch.nn.Module:
    config = transformers.BertConfig(
        num_hidden_layers=24, hidden_size=1024, num_attention_heads=16, intermediate_size=4096
    )
    return _Bert(transformers.BertModel(config, add_pooling_layer=False))


def _gpt2(layers: int) -> torch.nn.Module:
    return _Gpt2(transformers.GPT2Model(transformers.GPT2Config(n_layer=layers)))


def _vit(layers: int) -> torch.nn.Module:
    config = transformers.ViTConfig(num_hidden_layers=layers)
    return _VisionTransformer(transformers.ViTModel(config, add_pooling_layer=False))


def _resnet() -> torch.nn.Module:
    return _image(transformers.ResNetForImageClassification(transformers.ResNetConfig()))


def _resnet_18() -> torch.nn.Module:
    config = transformers.ResNetConfig(
        depths=[2, 2, 2, 2], hidden_sizes=[64, 128, 256, 512], layer_type="basic"
    )
    return _image(transformers.ResNetForImageClassification(config))


def _mobilenet() -> torch.nn.Module:
    # TensorFlow's padding is computed in Python from the image's size, which bakes the size in.
    config = transformers.MobileNetV2Config(tf_padding=False)
    return _image(transformers.MobileNetV2ForImageClassification(config))


def _segformer(layers: int = 2) -> torch.nn.Module:
    """With so many layers in each of its four stages."""
    config = transformers.SegformerConfig(depths=[layers] * 4)
    config.num_labels = 150
    return _image(transformers.SegformerForSemanticSegmentation(config))


def _efficientnet() -> torch.nn.Module:
    config = transformers.EfficientNetConfig(
        width_coefficient=1.0, depth_coefficient=1.0, image_size=224, hidden_dim=1280
    )
    return _image(transformers.EfficientNetForImageClassification(config))


def _regnet() -> torch.nn.Module:
    return _image(transformers.RegNetForImageClassification(transformers.RegNetConfig()))


def _poolformer() -> torch.nn.Module:
    return _image(transformers.PoolFormerForImageClassification(transformers.PoolFormerConfig()))


def _mobilevit() -> torch.nn.Module:
    config = transformers.MobileViTV2Config()
    return _image(transformers.MobileViTV2ForImageClassification(config))


def _whisper() -> torch.nn.Module:
    return _sound(transformers.WhisperModel(transformers.WhisperConfig()).get_encoder())


def _wav2vec2() -> torch.nn.Module:
    return _sound(transformers.Wav2Vec2Model(transformers.Wav2Vec2Config()))


# The same topology with an eighth of the channels, for tests.
_NARROW = 1 / 8
_TEXT_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_FACTORIES: Mapping[str, tuple[Callable[[], torch.nn.Module], tuple[str, ...], str]] = {
    "bert-2l": (partial(_bert, 2), _TEXT_INPUTS, "last_hidden_state"),
    "bert-base": (partial(_bert, 12), _TEXT_INPUTS, "last_hidden_state"),
    "bert-large": (_bert_large, _TEXT_INPUTS, "last_hidden_state"),
    "gpt2": (partial(_gpt2, 12), _TEXT_INPUTS[:2], "last_hidden_state"),
    "gpt2-2l": (partial(_gpt2, 2), _TEXT_INPUTS[:2], "last_hidden_state"),
    "albert-base": (partial(_albert, 768, 12, 12), _TEXT_INPUTS, "last_hidden_state"),
    "albert-large": (partial(_albert, 1024, 16, 24), _TEXT_INPUTS, "last_hidden_state"),
    "vit-b16": (partial(_vit, 12), ("pixel_values",), "last_hidden_state"),
    "vit-2l": (partial(_vit, 2), ("pixel_values",), "last_hidden_state"),
    "resnet-18": (_resnet_18, ("pixel_values",), "logits"),
    "resnet-50": (_resnet, ("pixel_values",), "logits"),
    "mobilenet-v2": (_mobilenet, ("pixel_values",), "logits"),
    "segformer-b0": (_segformer, ("pixel_values",), "logits"),
    "segformer-short": (partial(_segformer, 1), ("pixel_values",), "logits"),
    "efficientnet-b0": (_efficientnet, ("pixel_values",), "logits"),
    "regnet-y": (_regnet, ("pixel_values",), "logits"),
    "poolformer-s12": (_poolformer, ("pixel_values",), "logits"),
    "mobilevit-v2": (_mobilevit, ("pixel_values",), "logits"),
    "efficientvit-b1": (EfficientViT, ("pixel_values",), "logits"),
    "yolox-nano": (YoloX, ("pixel_values",), "boxes"),
    "yolov4": (YoloV4, ("pixel_values",), "boxes"),
    "unet": (UNet, ("pixel_values",), "image"),
    "candy": (StyleTransfer, ("pixel_values",), "image"),
    "whisper-tiny": (_whisper, ("input_features",), "last_hidden_state"),
    "wav2vec2": (_wav2vec2, ("input_values",), "last_hidden_state"),
    "googlenet": (GoogLeNet, ("pixel_values",), "logits"),
    "googlenet-narrow": (partial(GoogLeNet, _NARROW), ("pixel_values",), "logits"),
    "alexnet": (AlexNet, ("pixel_values",), "logits"),
    "alexnet-narrow": (partial(AlexNet, _NARROW), ("pixel_values",), "logits"),
    "vgg-16": (Vgg16, ("pixel_values",), "logits"),
    "vgg-16-narrow": (partial(Vgg16, _NARROW), ("pixel_values",), "logits"),
}
# The dense layers behind their last convolution fix the size of the image; the narrow GoogLeNet is
# fixed because exporting it in all sizes takes half a minute, whatever its width.
_FIXED_SIZE = ("googlenet-narrow", "alexnet", "alexnet-narrow", "vgg-16", "vgg-16-narrow")

# Detectors join levels of which each is exactly half as large as the one before.
_MULTIPLES: Mapping[str, int] = {"yolov4": 32, "yolox-nano": 32}

_AXES: Mapping[str, Mapping[int, str]] = {
    "input_ids": TEXT_AXES,
    "pixel_values": IMAGE_AXES,
    "input_values": SOUND_AXES,
    "input_features": BATCH_AXES,
}

NAMES: tuple[str, ...] = tuple(_FACTORIES)


def build(name: str) -> TorchModel:
    """The model called `name` with its seeded random weights, in inference mode.

    Raises KeyError for a name that is not in `NAMES`.
    """
    factory, input_names, output_name = _FACTORIES[name]
    torch.manual_seed(SEED)
    module = factory().eval()
    _perturb(module)
    axes = BATCH_AXES if name in _FIXED_SIZE else _AXES[input_names[0]]
    return TorchModel(name, module, input_names, output_name, axes, _MULTIPLES.get(name, 1))


def _perturb(module: torch.nn.Module) -> None:
    """Move biases, scales and running statistics off the zeros and ones they start from.

    Left alone, a wrong or forgotten bias would go unnoticed, and an exporter might fold it away.
    """
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.05 * torch.randn_like(parameter))
        for name, buffer in module.named_buffers():
            if name.endswith("running_mean"):
                buffer.add_(0.05 * torch.randn_like(buffer))
            elif name.endswith("running_var"):
                buffer.mul_(0.8 + 0.4 * torch.rand_like(buffer))
