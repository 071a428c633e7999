"""Operation probe: every operation of every policy, at every magnitude and sign, against the CPU and against Pillow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from first_light.findings import Finding

_HEIGHT, _WIDTH = 224, 230
_EXACT_LEVELS, _LEVELS = 0, 2
_SHARE, _LARGEST_SHARE, _LARGE = 0.01, 0.25, 2


def tables(device: str) -> Iterator[Finding]:
    """Apply each operation on the device and on the CPU; where no GPU is, at every fifth magnitude, against Pillow."""
    from dalirefurb.augment.policies.operations import AUTO_AUGMENT_OPERATIONS, OPERATIONS, WIDE_OPERATIONS, Group
    from dalirefurb.dali.insides import reason_of
    from tests.pictures import picture

    image = np.asarray(picture(3, height=_HEIGHT, width=_WIDTH))
    exact = (Group.IDENTITY, Group.POSTERIZE, Group.SOLARIZE)
    policies = {
        "rand_augment": (OPERATIONS, 31),
        "auto_augment": (AUTO_AUGMENT_OPERATIONS, 10),
        "trivial_augment": (WIDE_OPERATIONS, 31),
    }
    step = 1 if device == "gpu" else 5
    for policy, (operations, num_bins) in policies.items():
        bins = np.arange(0, num_bins, step).repeat(2)
        signs = np.tile([False, True], len(bins) // 2)
        for row, operation in enumerate(operations):
            what = f"{policy}, {operation.name}"
            warp = operation.group is Group.WARP
            most = _EXACT_LEVELS if operation.group in exact else _LEVELS
            try:
                on_cpu, on_device = (
                    _applied(operations, num_bins, row, bins, signs, image, where) for where in ("cpu", device)
                )
            except RuntimeError as error:
                _PIPELINES.clear()
                yield Finding(what, "runs", reason_of(str(error)).partition("\n")[0][:200], False)
                continue
            yield _alike(f"{what}, against the CPU", on_cpu, on_device, warp=warp, most=most)
            if (reference := _by_pillow(policy, operation.name, bins, signs, image)) is not None:
                yield _alike(f"{what}, against Pillow", reference, on_device, warp=warp, most=most)


def _applied(
    operations: Any, num_bins: int, row: int, bins: NDArray[Any], signs: NDArray[Any], image: Any, device: str
) -> NDArray[np.uint8]:
    """Apply one operation of a table at all magnitudes and signs."""
    from dalirefurb.augment.policies.operations import BinnedTable, Chosen
    from tests.one_batch import operate

    choice = Chosen(np.full(len(bins), row), bins, signs)
    sizes = {"heights": np.full(len(bins), _HEIGHT), "widths": np.full(len(bins), _WIDTH)}
    parameters = BinnedTable(operations, num_bins).parameters(choice, **sizes)
    return np.stack(operate(_pipeline(device), [image] * len(bins), parameters))


def _pipeline(device: str) -> Any:
    """Return a pipeline of all operations, made once, but after one failed, all are made anew."""
    from dalirefurb.augment.policies.layers import RandAugmentLayer
    from tests.one_batch import operation_pipeline

    if device not in _PIPELINES:
        on_gpu = device == "gpu"
        _PIPELINES[device] = operation_pipeline(
            RandAugmentLayer(), "gpu" if on_gpu else "cpu", device_id=0 if on_gpu else None
        )
    return _PIPELINES[device]


_PIPELINES: dict[str, Any] = {}


def _by_pillow(policy: str, name: str, bins: NDArray[Any], signs: NDArray[Any], image: Any) -> NDArray[np.uint8] | None:
    """Do the same with Pillow, by the tests' reference; None where what that needs is not installed."""
    try:
        from tests.augment.test_operations import WARPS, Case, _pillow
    except ImportError:
        return None
    if name == "Equalize" or (name in WARPS and policy == "trivial_augment"):
        return None  # The tests say where it differs from Pillow's, which takes more than a number of levels.
    cases = zip(bins.tolist(), signs.tolist(), strict=True)
    return np.stack([_pillow(Case(policy, name, number, negated), image) for number, negated in cases])


def _alike(what: str, expected: NDArray[Any], found: NDArray[Any], *, warp: bool, most: int) -> Finding:
    """Compare: warps by the share of pixels that show another source, others by levels."""
    levels = np.abs(expected.astype(np.int64) - found).max(axis=3)
    shares = (levels > 0).mean(axis=(1, 2))
    if warp:
        right = bool(np.median(shares) < _SHARE and (shares > _LARGEST_SHARE).sum() <= _LARGE)
        seen = f"median {np.median(shares):.4f}, at most {shares.max():.2f} of the pixels"
        return Finding(what, f"other pixels: median < {_SHARE}", seen, right)
    return Finding(what, f"at most {most} levels", f"at most {levels.max()} levels", bool(levels.max() <= most))
