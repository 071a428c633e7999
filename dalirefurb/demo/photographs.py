"""Photographs: a folder of JPEGs to compare real trainings on.

scikit-image ships photographs in its package. Random windows of them, turned, relit and with grain, are JPEGs that cost
as much to decode as ImageNet's; which photograph a window comes from is the class to learn.
"""

from __future__ import annotations

import io
import json
import math
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dalirefurb.cli.limits import whole_photographs
from dalirefurb.cli.terminal import counted, say
from dalirefurb.errors import ConfigurationError
from dalirefurb.show.files import folder_made, writing
from dalirefurb.system.resources import usable_cores

if TYPE_CHECKING:
    from PIL.Image import Image

WIDTH, HEIGHT = 500, 375
_IMAGE_BYTES = 65_000
_QUALITY = 90
_GRAIN = 8.0
_GRAIN_MARGIN = 256
_DESCRIPTION = "dalirefurb-demo.json"


@dataclass(frozen=True)
class Photographs:
    """A folder of JPEGs that is a function of these numbers.

    Attributes:
        images: Number of images; classes take turns, so their numbers of images differ by one at most.
        seed: Seed of windows, turns and light.
    """

    images: int = 2000
    seed: int = 0

    @contextmanager
    def folder(self, path: Path | None = None) -> Iterator[Path]:
        """Provide the folder, one subfolder per class: at `path`, made if need be, or one deleted in the end."""
        if path is not None and self.is_made(path):
            yield path
            return
        parent = None if path is None else path.absolute().parent
        with ExitStack() as stack:
            with _writing(path):
                if parent is not None:
                    stack.enter_context(folder_made(parent))
                temporary = tempfile.TemporaryDirectory(prefix="dalirefurb-demo-", dir=parent)
                made = Path(stack.enter_context(temporary)) / "images"
                self._write(made)
                if path is not None:
                    # Whole or not at all: an interrupted call leaves nothing at `path`.
                    made.rename(path)
                    stack.close()
            yield path or made

    def is_made(self, path: Path | None) -> bool:
        """Tell whether the folder is there; refuse what is not the demo's, or can have no folder or no room."""
        with _writing(path):
            if path is not None and path.exists() and not (path.is_dir() and not any(path.iterdir())):
                try:
                    found = json.loads((path / _DESCRIPTION).read_text())
                except (OSError, ValueError):
                    found = None
                if found != asdict(self):
                    given = f"those of {_words(found)}" if isinstance(found, dict) else "other files"
                    raise ConfigurationError(
                        f"the folder must be absent, empty or hold the demo's images of {_words(asdict(self))}, but "
                        f"{path} holds {given}; name another or delete it"
                    )
                return True
            place = Path(tempfile.gettempdir()) if path is None else path.absolute()
            there = next(each for each in (place, *place.parents) if each.exists())
            tempfile.TemporaryDirectory(prefix="dalirefurb-demo-", dir=there).cleanup()
            needed, free = self.images * _IMAGE_BYTES, shutil.disk_usage(there).free
        if needed > free:
            raise ConfigurationError(
                f"must fit on the disk, but {self.images} take about {needed / 1e9:.1f} GB, and {there} has "
                f"{free / 1e9:.1f} GB left; make fewer, or name another folder with --folder",
                argument="images",
            )
        return False

    def _write(self, folder: Path) -> None:
        """Write all images, and tell of progress, then their description."""
        say(f"making {self.images} JPEGs of {WIDTH} x {HEIGHT} pixels")
        photographs = whole_photographs()
        paths = [Path(photographs.name(index)) for index in range(len(photographs))]
        sheets = [_sheet(path) for path in paths]
        for path in paths:
            (folder / path.stem).mkdir(parents=True)
        grain = _grain(self.seed)

        def write(index: int) -> None:
            kind = index % len(paths)
            encoded = _window(sheets[kind], np.random.default_rng((self.seed, index)), grain)
            (folder / paths[kind].stem / f"{index:06}.jpg").write_bytes(encoded)

        # Pillow lets other threads run while it turns and encodes.
        pool = ThreadPoolExecutor(usable_cores())
        try:
            made = pool.map(write, range(self.images))
            for _ in counted(made, "making images", "image", self.images):
                pass
        finally:
            pool.shutdown(cancel_futures=True)
        (folder / _DESCRIPTION).write_text(json.dumps(asdict(self)))


def _writing(path: Path | None) -> AbstractContextManager[None]:
    """Tell of a folder that cannot be written, or of a full disk, as what it is."""
    return writing(path or Path(tempfile.gettempdir()), what="folder", option="--folder")


def _sheet(path: Path) -> Image:
    """Return a photograph that goes on beyond its edges, mirrored, to twice its width and height."""
    from PIL import Image

    pixels = np.asarray(Image.open(path).convert("RGB"))
    height, width = pixels.shape[:2]
    padding = ((height // 2, height // 2), (width // 2, width // 2), (0, 0))
    return Image.fromarray(np.pad(pixels, padding, mode="symmetric"))


def _window(sheet: Image, random: np.random.Generator, grain: Image) -> bytes:
    """Return a random window as a JPEG: turned by any angle, in other light, with grain."""
    from PIL import Image, ImageChops

    photograph_width, photograph_height = (sheet.width + 1) // 2, (sheet.height + 1) // 2
    angle = random.uniform(0, 2 * math.pi)
    # Pixels of the photograph per pixel of the window.
    scale = random.uniform(0.35, 0.9) * min(photograph_width, photograph_height) / HEIGHT
    centre_x = sheet.width / 2 + random.uniform(-0.25, 0.25) * photograph_width
    centre_y = sheet.height / 2 + random.uniform(-0.25, 0.25) * photograph_height
    cos, sin = scale * math.cos(angle), scale * math.sin(angle)
    x, y = WIDTH / 2, HEIGHT / 2
    turn = (cos, -sin, centre_x - cos * x + sin * y, sin, cos, centre_y - sin * x - cos * y)
    image = sheet.transform((WIDTH, HEIGHT), Image.Transform.AFFINE, turn, Image.Resampling.BILINEAR)
    gains = random.uniform(0.5, 1.2) * random.uniform(0.8, 1.2, 3)
    image = image.point([min(255, round(level * gain)) for gain in gains for level in range(256)])
    left, top = random.integers(0, _GRAIN_MARGIN, 2).tolist()
    image = ImageChops.add(image, grain.crop((left, top, left + WIDTH, top + HEIGHT)), 1, -128)
    encoded = io.BytesIO()
    image.save(encoded, "JPEG", quality=_QUALITY)
    return encoded.getvalue()


def _grain(seed: int) -> Image:
    """Return noise around 128. It gives enlarged windows the detail, and the bytes, of photographs of their size."""
    from PIL import Image

    random = np.random.default_rng((seed, 0, 0))
    noise = random.normal(128, _GRAIN, (HEIGHT + _GRAIN_MARGIN, WIDTH + _GRAIN_MARGIN, 3))
    return Image.fromarray(noise.clip(0, 255).round().astype(np.uint8))


def _words(description: dict[str, int]) -> str:
    return ", ".join(f"{name} {value}" for name, value in description.items())
