"""Serving probes: the streams of a loader, with each store and without, against those of the CPU."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from first_light.findings import Finding

_SIZE, _SAMPLES, _EPOCHS = 64, 23, 5


def cpu_cpu(device: str) -> Iterator[Finding]:
    """Serve by DALI's operators and by kernels on the CPU."""
    yield from _served("cpu", "cpu")


def cpu_gpu(device: str) -> Iterator[Finding]:
    """Serve with the final part on the GPU."""
    yield from _served("cpu", "gpu")


def gpu_gpu(device: str) -> Iterator[Finding]:
    """Serve with both parts on the GPU."""
    yield from _served("gpu", "gpu")


def _served(partial_device: str, final_device: str) -> Iterator[Finding]:
    from dalirefurb import ImageFolder, MemoryStore, auto_augment, rand_augment
    from dalirefurb.store import DeviceStore
    from tests.pictures import write_folder

    warnings.filterwarnings("ignore", ".*there is no store to keep them in")
    as_levels: dict[str, Any] = {"mean": (0, 0, 0), "std": (1 / 255,) * 3}
    recipes = {
        "paper": rand_augment(_SIZE, **as_levels),
        "crop last": rand_augment(_SIZE, order="crop_last", **as_levels),
        "AutoAugment": auto_augment(_SIZE, **as_levels),
    }
    stores: dict[str, Callable[[], Any]] = {"memory": MemoryStore}
    stores["device"] = partial(DeviceStore, device=final_device)  # type: ignore[arg-type]
    if final_device == "gpu":
        stores["pinned host"] = partial(DeviceStore, pinned_host=True)
    with TemporaryDirectory() as folder:
        source = ImageFolder(write_folder(Path(folder), num_samples=_SAMPLES))
        for name, recipe in recipes.items():
            serve = partial(_stream, source, recipe, partial_device=partial_device, final_device=final_device)
            alone, _ = serve(None, kernels="dali")
            for kind, make in stores.items():
                served, stats = serve(make(), kernels="dali")
                wrong = [row for row, (a, b) in enumerate(zip(alone, served, strict=True)) if not np.array_equal(a, b)]
                seen = f"batches {wrong[:5]} of {len(alone)} differ" if wrong else f"{len(alone)} batches the same"
                seen += f", {stats.hits} hits"
                right = not wrong and stats.hits > 0 and stats.recomputed == 0
                yield Finding(f"{name}, {kind} store, against none", "the same bits, by hits", seen, right)
            kernels = None if final_device == "cpu" else "dali"
            on_cpu, _ = _stream(source, recipe, None, partial_device="cpu", final_device="cpu", kernels=kernels)
            yield _near(f"{name}, against cpu/cpu by {kernels or 'kernels'}", on_cpu, alone)


def _stream(
    source: Any, recipe: Any, store: Any, *, partial_device: str, final_device: str, kernels: str | None
) -> tuple[list[np.ndarray], Any]:
    """Serve some epochs; return the images of each batch on the host, and the loader's counts."""
    from dalirefurb import Loader, Prefetch, Refurbish

    with Loader(
        source,
        recipe,
        Refurbish(_SAMPLES, batch_size=6, reuse_factor=3, seed=7),
        store,
        partial_device=partial_device,  # type: ignore[arg-type]
        final_device=final_device,  # type: ignore[arg-type]
        kernels=kernels,  # type: ignore[arg-type]
        prefetch=Prefetch(replicas=2),
    ) as loader:
        images = [batch.cpu().numpy() for _ in range(_EPOCHS) for batch, _ in loader]
        stats = loader.stats()
    if store is not None:
        store.close()
    return images, stats


def _near(what: str, expected: list[np.ndarray], found: list[np.ndarray]) -> Finding:
    pairs = zip(expected, found, strict=True)
    levels = np.concatenate([np.abs(a.astype(np.float64) - b).ravel() for a, b in pairs])
    within = float((levels <= 2).mean())
    seen = f"mean {levels.mean():.2f}, {100 * within:.1f} % within 2 levels"
    return Finding(what, "mean < 2, > 90 % within 2 levels", seen, bool(levels.mean() < 2 and within > 0.9))
