"""Costs as they could have been measured, for what computes with them."""

from dalirefurb.tuning.costs import Costs, DiskCosts, SplitCosts, Spread, StepCosts
from dalirefurb.tuning.model import Machine, Workload

MS = 1e-3
PARTIAL_BYTES = 150_528
UNLIMITED = 1 << 60


def steady(value, *, relative=0.0, n=3):
    return Spread(value, value * (1 - relative / 2), value * (1 + relative / 2), n)


def split(recipe="paper", place=4, *, hit_ms=0.1, standard_ms=0.7, put_ms=0.03, kept=0.95, noise=0.0, **changed):
    """A split whose costs are of two cores; what it keeps falls with the reuse factor."""
    uses = {1: 1.0, 2: (1 + kept) / 2, 3: kept, 4: kept**1.5, 5: kept**2, 90: kept**20}
    values = {
        "image_bytes": PARTIAL_BYTES,
        "image_std_bytes": 0.0,
        "largest_bytes": PARTIAL_BYTES,
        "deterministic": False,
        "cached": ("", "decode", "random_resized_crop", "flip", "rand_augment_1", "rand_augment_2")[place],
        **changed,
    }
    return SplitCosts(
        recipe=recipe,
        split=place,
        final=f"stage_{place}",
        standard_s=steady(standard_ms * MS, relative=noise),
        put_s=put_ms * MS,
        hit_s=steady(hit_ms * MS),
        kept=uses,
        **values,
    )


def costs(*splits, step_ms=None, disk=True, read_ms=0.05, serial_ms=0.01, step_noise=0.0, n=3):
    return Costs(
        cores=2,
        batch_size=256,
        splits=splits or (split(place=1, hit_ms=0.4, kept=1.0, deterministic=True), split()),
        read_s=read_ms * MS,
        encoded_bytes=110_000,
        serial_s=serial_ms * MS,
        disk=DiskCosts(get_s=1e-11, put_s=2e-10, read_bytes_per_s=1e9, write_bytes_per_s=5e8) if disk else None,
        step=None if step_ms is None else StepCosts(steady(step_ms * MS, relative=step_noise, n=n)),
    )


def machine(**changed):
    return Machine(**{"cores": 2, "memory_bytes": UNLIMITED, "disk_bytes": 0, "page_cache_bytes": UNLIMITED, **changed})


def workload(**changed):
    return Workload(**{"num_samples": 100_000, "batch_size": 256, "epochs": 90, **changed})
