"""What timm's `create_transform` makes of its arguments, as stages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from dalirefurb.augment.importing.assembly import Parts, erasing_after, maybe, parts_of, refusal, refuse, three
from dalirefurb.augment.output import IMAGENET_MEAN, IMAGENET_STD, Channels, Output
from dalirefurb.augment.policies.timm_strings import timm_auto_augment
from dalirefurb.augment.stage import Size, Stage
from dalirefurb.augment.stages.color import ColorJitter, GaussianBlur, RandomGrayscale
from dalirefurb.augment.stages.crop import CenterCrop, HorizontalFlip, VerticalFlip
from dalirefurb.augment.stages.resize import RATIO, SCALE, RandomResizedCrop, Resize
from dalirefurb.calls import Explained, Words, no_argument
from dalirefurb.checks import flag, number, plain, require
from dalirefurb.errors import ConfigurationError

ERASED, ERASED_RATIO = (0.02, 1 / 3), (0.3, 1 / 0.3)
"""What timm's random erasing takes: shares of the area, and height divided by width."""

_INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos")
_ERASURES = {"const": "mean", "rand": "channel", "pixel": "pixel"}
_CROP_PCT = 0.875
_BLURRING = 23
"""Side of the kernel of timm's blur, in pixels."""

_REFUSED = {
    "re_num_splits": "images of one batch are one set here; leave it out",
    "crop_border_pixels": "cut the border off by a Recipe of your own, with CenterCrop first",
    "tf_preprocessing": "TensorFlow's resizes are others; leave it out",
    "separate": "images are not made in several splits, and AugMix's consistency loss needs them; leave it out",
    "naflex": "images of one size are made; leave it out",
    "patchify": "images are made, not patches: cut them on the model's side",
}
"""Arguments that must be false, with what helps."""

_ASK_NOTHING: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(("collate_fn", "device", "num_batches", "input_size_choices", "batch_size_choices"), ()),
    **dict.fromkeys(("batch_choice_weights", "batch_schedule_epochs"), ()),
    **dict.fromkeys(("re_split", "distributed", "pin_memory", "fp16"), (False,)),
    **dict.fromkeys(("patchify_channels_last", "patchify_flatten"), (True,)),
    **dict.fromkeys(("persistent_workers", "use_multi_epochs_loader"), (True, False)),
    **dict.fromkeys(("num_aug_repeats", "num_aug_splits", "batch_choice_seed"), (0,)),
    "img_dtype": ("float32", "torch.float32"),
    "worker_seeding": ("all",),
    "batch_choice_schedule": ("constant",),
    "batch_schedule_spread": (0.65,),
    "batch_schedule_random_mix": (0.1,),
    "patch_size": (16,),
    "max_seq_len": (576,),
}
"""Arguments of `create_loader` and `create_transform` of timm 1.0, with the values that change nothing; None is one of
each. Threads live as long as the loader, whatever is said of workers."""


@dataclass(frozen=True)
class CreateTransform(metaclass=Explained):
    """Arguments of `timm.data.create_transform` 1.0, with timm's names, meanings and defaults.

    Attributes:
        input_size: Side of the images in pixels, (height, width), or (channels, height, width).
        is_training: Whether images are augmented.
        no_aug: Whether they are not, though it is training.
        train_crop_mode: "rrc", a random resized crop; None is the same.
        scale: Least and greatest share of the image's area that the crop takes, None: 0.08 and 1.
        ratio: Least and greatest width divided by height of what it takes, None: 3/4 and 4/3.
        hflip: Probability that left and right are mirrored.
        vflip: Probability that top and bottom are mirrored.
        color_jitter: Greatest change of brightness, contrast and saturation, or three or four numbers, the last one the
            hue's; None: none. Where `auto_augment` is given and not "3a", timm leaves it out.
        color_jitter_prob: Probability of it; None: always.
        grayscale_prob: Probability of grey.
        gaussian_blur_prob: Probability of a blur.
        auto_augment: Policy, see `dalirefurb.augment.timm_auto_augment`; None: none.
        interpolation: Interpolation of resizes, "nearest", "bilinear", "bicubic", "lanczos", and of the random resized
            crop "random". Policies' warps are bilinear, where timm's may be bicubic.
        mean: Means of the channels, of pixels in 0..1.
        std: Standard deviations of the channels.
        re_prob: Probability of random erasing.
        re_mode: What it paints: "const", the mean colour; "rand", a random one; "pixel", one for each pixel.
        re_count: Greatest number of windows.
        re_num_splits: 0.
        crop_pct: Side of the crop, divided by that of the resized image, None: 0.875. Not for training.
        crop_mode: "center", or "squash", which changes the aspect ratio; None is "center". Not for training.
        crop_border_pixels: None.
        tf_preprocessing: False.
        use_prefetcher: Whether timm normalises later; it is the same here.
        normalize: True.
        separate: False.
        naflex: False.
        patchify: False.
    """

    INSTEAD: ClassVar[Words] = {
        "aa": "it is auto_augment here",
        "reprob": "it is re_prob here",
        "remode": "it is re_mode here",
        "recount": "it is re_count here",
        "train_interpolation": "it is interpolation here",
        "img_size": "it is input_size here",
        "distributed": "the planner divides batches among ranks: Refurbish(..., shards=8)",
        "device": "TimmLoader(loader, device=device) moves batches",
        **dict.fromkeys(
            ("img_dtype", "fp16"), "the output has a dtype: Recipe.from_timm(...).with_output(dtype='bfloat16')"
        ),
        **dict.fromkeys(
            ("re_split", "num_aug_splits", "num_aug_repeats"),
            "a sample is served once an epoch, and all images of a batch are augmented alike: leave it out",
        ),
        "mixup": "batches are mixed after the loader: dalirefurb.Mix(num_classes, mixup=...)",
        "cutmix": "batches are mixed after the loader: dalirefurb.Mix(num_classes, cutmix=...)",
        "force_color_jitter": "create_transform has none: put a ColorJitter after the policy, in a Recipe of your own",
        "worker_seeding": "the planner draws all numbers: Refurbish(..., seed=0)",
        **dict.fromkeys(
            ("num_batches", "input_size_choices", *(name for name in _ASK_NOTHING if name.startswith("batch_"))),
            "images and batches of another size are another loader's: leave it out",
        ),
        **dict.fromkeys(
            ("patch_size", "max_seq_len", "patchify_channels_last", "patchify_flatten"),
            "images are made, not patches: leave it out",
        ),
    }

    input_size: Size | tuple[int, int, int] = 224
    is_training: bool = False
    no_aug: bool = False
    train_crop_mode: str | None = None
    scale: tuple[float, float] | None = None
    ratio: tuple[float, float] | None = None
    hflip: float = 0.5
    vflip: float = 0.0
    color_jitter: float | Sequence[float] | None = 0.4
    color_jitter_prob: float | None = None
    grayscale_prob: float = 0.0
    gaussian_blur_prob: float = 0.0
    auto_augment: str | None = None
    interpolation: str = "bilinear"
    mean: Channels = IMAGENET_MEAN
    std: Channels = IMAGENET_STD
    re_prob: float = 0.0
    re_mode: str = "const"
    re_count: int = 1
    re_num_splits: int = 0
    crop_pct: float | None = None
    crop_mode: str | None = None
    crop_border_pixels: int | None = None
    tf_preprocessing: bool = False
    use_prefetcher: bool = False
    normalize: bool = True
    separate: bool = False
    naflex: bool = False
    patchify: bool = False

    def __post_init__(self) -> None:
        for name in ("is_training", "no_aug", "normalize"):
            flag(name, getattr(self, name))
        remedies = {name: remedy for name, remedy in _REFUSED.items() if getattr(self, name)}
        if not self.normalize:
            remedies["normalize"] = "pass mean=(0, 0, 0) and std=(1, 1, 1) for pixels in 0..1"
        known = self.interpolation in _INTERPOLATIONS or (self.is_training and self.interpolation == "random")
        if not known:
            remedies["interpolation"] = f"choose one of {', '.join(_INTERPOLATIONS)}"
        modes = {"train_crop_mode": (None, "rrc"), "crop_mode": (None, "center", "squash")}
        for name, allowed in modes.items():
            if getattr(self, name) not in allowed:
                remedies[name] = f"pass {allowed[-1]!r}, or leave it out"
        jitters = self.color_jitter
        if isinstance(jitters, (tuple, list)) and len(jitters) not in (3, 4):
            remedies["color_jitter"] = "pass one number for all, or three or four"
        if remedies:
            refused = (refusal(f"timm's {name}={getattr(self, name)!r}", each) for name, each in remedies.items())
            raise ConfigurationError("; ".join(refused))
        require(self.re_mode in _ERASURES, "re_mode", "const, rand or pixel", self.re_mode, "choose one")

    @property
    def size(self) -> Size:
        """Side of the images, or height and width if timm is given these."""
        given: Any = self.input_size
        return tuple(given[-2:]) if isinstance(given, (tuple, list)) else given

    @property
    def output(self) -> Output:
        """What the model receives."""
        given: Any = self.input_size
        channels: Any = given[0] if isinstance(given, (tuple, list)) and len(given) == 3 else 3
        return Output(self.size, mean=self.mean, std=self.std, channels=channels)

    @property
    def stages(self) -> list[Stage]:
        """The stages in order, without `Decode`."""
        if not self.is_training:
            return self._evaluating()
        return self._unchanged() if self.no_aug else self._training()

    def _evaluating(self) -> list[Stage]:
        size, limits = self.output.sides, "above 0, and 1 at most"
        share = number("crop_pct", self.crop_pct or _CROP_PCT, limits, lambda share: 0 < share <= 1, "0.875 is usual")
        sides = (math.floor(size[0] / share), math.floor(size[1] / share))
        if self.crop_mode == "squash":
            return [Resize(sides, self.interpolation), CenterCrop(size)]  # type: ignore[arg-type]
        if sides[0] != sides[1]:
            refuse(
                f"timm's input_size={self.input_size!r} with the aspect ratio kept",
                "pass crop_mode='squash', or make a Recipe of Resize and CenterCrop",
            )
        return [Resize(sides[0], self.interpolation), CenterCrop(size)]  # type: ignore[arg-type]

    def _unchanged(self) -> list[Stage]:
        interpolation: Any = "bilinear" if self.interpolation == "random" else self.interpolation
        return [Resize(self.size, interpolation), CenterCrop(self.size)]

    def _training(self) -> list[Stage]:
        size, interpolation = self.output.sides, self.interpolation
        stages: list[Stage] = [
            RandomResizedCrop(size, self.scale or SCALE, self.ratio or RATIO, interpolation)  # type: ignore[arg-type]
        ]
        stages += [HorizontalFlip(self.hflip)] if self.hflip else []
        stages += [VerticalFlip(self.vflip)] if self.vflip else []
        stages += self._colors()
        if self.re_prob:
            count: Any = self.re_count if self.re_count == 1 else (1, self.re_count)
            windows = {"probability": self.re_prob, "scale": ERASED, "ratio": ERASED_RATIO, "count": count}
            stages.append(erasing_after(self.output.means, self.output.stds, _ERASURES[self.re_mode], **windows))
        return stages

    def _colors(self) -> list[Stage]:
        """The policy, and what timm lets follow."""
        stages: list[Stage] = []
        if self.auto_augment:
            warps: Any = "nearest" if self.interpolation == "nearest" else "bilinear"
            red, green, blue = (round(255 * mean) for mean in three(self.output.means))
            stages += timm_auto_augment(self.auto_augment, interpolation=warps, fill=(red, green, blue))
        jitters = self.color_jitter
        if jitters and (not self.auto_augment or "3a" in self.auto_augment):
            jitter = ColorJitter(*(jitters if isinstance(jitters, (tuple, list)) else (jitters,) * 3))
            stages += maybe(jitter, 1.0 if self.color_jitter_prob is None else self.color_jitter_prob)
        stages += [RandomGrayscale(self.grayscale_prob)] if self.grayscale_prob else []
        stages += maybe(GaussianBlur(_BLURRING), self.gaussian_blur_prob)
        return stages


def imported(split: int | str | None, **arguments: Any) -> Parts:
    """Return what becomes a recipe of timm's arguments; see `CreateTransform` and `assembly.parts_of`.

    Args:
        split: See `assembly.parts_of`.
        arguments: Arguments of `create_transform`, and those of `create_loader` that ask for nothing.

    Raises:
        ConfigurationError: If there are no stages for these.
        TypeError: If some are no arguments of it; the message tells of all that cannot be taken.
    """
    known = {field.name for field in fields(CreateTransform)}
    unknown = [name for name, value in arguments.items() if name not in known and not _asks_nothing(name, value)]
    given = {name: plain(value) for name, value in arguments.items() if name in known}
    if not unknown:
        transform = CreateTransform(**given)
        return parts_of(transform.stages, transform.output, split)
    told = _refusals(unknown)
    try:
        CreateTransform(**given)
    except ConfigurationError as error:
        told.append(str(error))
    raise TypeError(f"Recipe.from_timm: {'; '.join(told)}")


_OF_PRETRAINED_CFG = {
    *("url", "file", "state_dict", "hf_hub_id", "hf_hub_filename", "source", "architecture", "tag", "custom_load"),
    *("test_input_size", "min_input_size", "fixed_input_size", "test_crop_pct", "num_classes", "label_offset"),
    *("label_names", "label_descriptions", "pool_size", "test_pool_size", "first_conv", "classifier", "license"),
    *("description", "origin_url", "paper_name", "paper_ids", "notes"),
}
"""What a model's `pretrained_cfg` has besides arguments of `create_transform`."""


def _refusals(unknown: Sequence[str]) -> list[str]:
    """Return why arguments cannot be taken, and what helps: one text for each, or for all of a `pretrained_cfg`."""
    of_model = [name for name in unknown if name in _OF_PRETRAINED_CFG]
    names = ", ".join(map(repr, of_model))
    told = [f"a model's pretrained_cfg has {names}, too: pass **timm.data.resolve_model_data_config(model)"]
    return told[: len(of_model)] + [no_argument(CreateTransform, name) for name in unknown if name not in of_model]


def _asks_nothing(name: str, value: Any) -> bool:
    if name not in _ASK_NOTHING:
        return False
    value = str(value) if name == "img_dtype" and value is not None else plain(value)
    return value is None or (isinstance(value, (bool, int, float, str)) and value in _ASK_NOTHING[name])
