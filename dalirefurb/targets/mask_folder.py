"""MaskFolder: images in one folder, and a mask for each of them in another."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from dalirefurb.checks import path_of, require
from dalirefurb.errors import ConfigurationError
from dalirefurb.source.files import EXTENSIONS, FileList, PathLike, folders_below
from dalirefurb.system.memory_budget import Budget
from dalirefurb.targets.annotated import Annotated
from dalirefurb.targets.mask_images import Masks


class MaskFolder(Annotated):
    """Image files in a folder, at any depth, and their masks at the same place in another one.

        images/city/0001.jpg    masks/city/0001.png        MaskFolder("images", "masks")
        images/0001.jpg         masks/0001_mask.png        MaskFolder("images", "masks", suffix="_mask")
        images/a_photo.png      masks/a_labels.png         MaskFolder(..., image_suffix="_photo", suffix="_labels")

    An image without a mask is a bad sample, which is told, or replaced, when it is read, see `BadSamplePolicy`. A batch
    is `images, masks`.

    Args:
        images: Folder of the images; hidden files and folders are left out.
        masks: Folder of the masks.
        suffix: What a mask's name ends in, before its file's ending, beside the image's name.
        image_suffix: What an image's name ends in that its mask's has not.
        fill: See `Masks`.
        dtype: See `Masks`.
        keep: See `Masks`.

    Raises:
        ConfigurationError: If there are no images, or no image has a mask.
    """

    def __init__(
        self,
        images: PathLike,
        masks: PathLike,
        *,
        suffix: str = "",
        image_suffix: str = "",
        fill: int = 255,
        dtype: str = "int64",
        keep: Budget = "10%",
    ) -> None:
        paths, found = image_files(images, "images"), image_files(masks, "masks")
        by_place: dict[str, str] = {}
        for place in found:
            if (other := by_place.setdefault(_stem(place), place)) != place:
                raise ConfigurationError(
                    f"must have a name of its own each, but there are {other} and {place}: remove one",
                    argument="masks",
                )
        root, mask_root = path_of(images), path_of(masks)
        paths = [place for place in paths if _stem(place).endswith(image_suffix)]
        wanted = [_stem(place).removesuffix(image_suffix) + suffix for place in paths]
        if not any(place in by_place for place in wanted):
            first = f"of {paths[0]} there is no {wanted[0]}.png" if paths else f"no image ends in {image_suffix}"
            raise ConfigurationError(
                f"must lie in {mask_root} as images do in {root}, but {first}: pass suffix= if their names end "
                f"in more, or a list of paths to Masks",
                argument="masks",
            )
        source = FileList([root / place for place in paths], np.zeros(len(paths), np.int64))
        files = [mask_root / by_place.get(place, f"{place}.png") for place in wanted]
        super().__init__(source, {"mask": Masks(files, fill=fill, dtype=dtype, keep=keep)})


def image_files(folder: PathLike, name: str) -> list[str]:
    """List a folder's image files, at any depth, by their places in it, sorted; what is hidden is left out."""
    remedy = "pass the path of one folder, such as 'photos/images'"
    require(isinstance(folder, (str, os.PathLike)) and path_of(folder).is_dir(), name, "a folder", folder, remedy)
    try:
        below = folders_below(str(path_of(folder)), ".")
        images = sorted(str(Path(inner) / file) for inner, files, _ in below for file in files)
    except OSError as error:
        raise ConfigurationError(
            f"must be a folder of readable folders, but {error.filename} is none: {error.strerror}", argument=name
        ) from error
    require(bool(images), name, "a folder of image files", folder, f"images end in {', '.join(sorted(EXTENSIONS))}")
    return images


def _stem(place: str) -> str:
    """Return a file's place without its ending."""
    return str(Path(place).with_suffix(""))
