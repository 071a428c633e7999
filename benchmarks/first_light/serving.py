"""Serving probes: the streams of a loader, with each store and without, against those of the CPU."""

from __future__ import annotations

import time
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
            if final_device == "gpu":
                yield from _by_kernels(source, name, recipe, stores, partial_device)


def _by_kernels(
    source: Any, name: str, recipe: Any, stores: dict[str, Callable[[], Any]], partial_device: str
) -> Iterator[Finding]:
    """Serve by kernels on the GPU: what the CPU's serve, to the last bit, but for what a GPU decodes."""
    serve = partial(_stream, source, recipe)
    expected, _ = serve(None, partial_device="cpu", final_device="cpu", kernels="numba")
    alone, _ = serve(None, partial_device=partial_device, final_device="gpu", kernels="cuda")
    if partial_device == "gpu":
        yield _near(f"{name}, by kernels, against cpu/cpu", expected, alone)
        expected = alone
    streams = {"no": lambda: None, **stores}
    for kind, make in streams.items():
        served, _ = serve(make(), partial_device=partial_device, final_device="gpu", kernels="cuda")
        wrong = [row for row, (a, b) in enumerate(zip(expected, served, strict=True)) if not np.array_equal(a, b)]
        seen = f"batches {wrong[:5]} of {len(expected)} differ" if wrong else f"{len(expected)} batches the same"
        hoped = "the CPU's bits" if partial_device == "cpu" else "the same bits"
        yield Finding(f"{name}, by kernels, {kind} store", hoped, seen, not wrong)


def hits(device: str) -> Iterator[Finding]:
    """Serve partial images that a store on the device has: they are read where they lie."""
    import torch

    from dalirefurb import Arrays, Loader, rand_augment
    from dalirefurb.planning import Frozen
    from dalirefurb.store import DeviceStore

    samples, rows, side = (4096, 256, 230) if device == "gpu" else (64, 16, 40)
    images = np.random.default_rng(0).integers(0, 256, (samples, side, side, 3), np.uint8)
    source, recipe = Arrays(images, np.zeros(samples)), rand_augment(side, raw=True)
    planner = Frozen(samples, batch_size=rows, seed=1)
    settings: dict[str, Any] = {"final_device": device, "kernels": "cuda" if device == "gpu" else None}
    with (
        DeviceStore(device=device) as store,  # type: ignore[arg-type]
        Loader(source, recipe, planner, store, **settings) as loader,
    ):
        for _ in range(2):
            list(loader)
        began, served = time.perf_counter(), 0
        for _ in range(_EPOCHS):
            for batch, _ in loader:
                served += len(batch)
        if device == "gpu":
            torch.cuda.synchronize()
        rate = served / (time.perf_counter() - began)
        stats = loader.stats()
    yield Finding("computed anew", "0 after the first epoch", f"{stats.misses - samples}", stats.misses == samples)
    right = rate >= 1e5 if device == "gpu" else None
    yield Finding("every sample a hit", ">= 100,000 images/s", f"{rate:,.0f} images/s", right)


def capture(device: str) -> Iterator[Finding]:
    """Capture a CUDA graph of a model's step while batches are made by other threads."""
    import torch

    from dalirefurb import Arrays, Loader, Standard, rand_augment

    images = np.random.default_rng(0).integers(0, 256, (512, _SIZE, _SIZE, 3), np.uint8)
    source, recipe, planner = Arrays(images, np.zeros(512)), rand_augment(_SIZE, raw=True), Standard(512, batch_size=64)
    on = "cuda" if device == "gpu" else "cpu"
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten()).to(on)
    for mode in ("thread_local", "global"):
        with Loader(source, recipe, planner, final_device=device) as loader, torch.no_grad():  # type: ignore[arg-type]
            batches = iter(loader)
            given = next(batches)[0].to(on).clone()
            model(given)
            if device == "cpu":
                yield Finding(f"capture_error_mode={mode}", "captured", f"{len(list(batches))} batches, no CUDA", None)
                continue
            differ = 0
            try:
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, capture_error_mode=mode):
                    made = model(given)
                for batch, _ in batches:
                    given.copy_(batch)
                    graph.replay()
                    differ += not torch.equal(made, model(given))
                seen, right = f"captured; {differ} batches differ", differ == 0
            except RuntimeError as error:
                seen, right = str(error).split("\n")[0][:100], False
            told = right if mode == "thread_local" else None
            yield Finding(f"capture_error_mode={mode}", "captured, and the same", seen, told)


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
