"""Report of what to set: the verdict first, then a table, and code to paste."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from dalirefurb.engine.verdict import Verdict
from dalirefurb.store.memory_budget import amount
from dalirefurb.tuning.choice import NOISY, REUSE_FACTORS, Choice
from dalirefurb.tuning.model import Configuration, Prediction


def text(choice: Choice) -> str:
    """Return all of it."""
    notes = [f"note: {note}" for note in choice.costs.notes]
    return "\n".join([_verdict(choice), _recommendation(choice), "", table(choice), *notes])


def table(choice: Choice) -> str:
    """Set the best of each kind beside standard."""
    standard = choice.standard
    head = ["", "images/s", "of standard", "kept", "memory", "disk", "device", "epoch 0", "run", "limited by"]
    rows = [
        [
            ("* " if row == choice.recommended else "  ") + row.configuration.name,
            f"{row.images_per_s:,.0f}",
            f"{row.images_per_s / standard.images_per_s:.2f}",
            f"{row.kept:.3f}",
            amount(row.memory_bytes) if row.memory_bytes else "-",
            amount(row.disk_bytes) if row.disk_bytes else "-",
            amount(row.device_bytes) if row.device_bytes else "-",
            _duration(row.epoch_0_s),
            _duration(row.run_s),
            row.bound,
        ]
        for row in shown(choice)
    ]
    widths = [max(len(line[place]) for line in [head, *rows]) for place in range(len(head))]
    lines = [
        "  ".join(
            f"{cell:<{width}}" if not place else f"{cell:>{width}}"
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in [head, *rows]
    ]
    return "\n".join([*lines, f"run: {choice.workload.epochs} epochs; * what to take"])


def shown(choice: Choice) -> list[Prediction]:
    """Return standard, what to take, the fastest of each reuse factor that keeps enough, and what HyCache would do."""
    found = [row for row in choice.rows if row.configuration.reuse_factor == 1 and row != choice.standard]
    for factor in REUSE_FACTORS:
        alike = [row for row in choice.rows if row.configuration.reuse_factor == factor and row.kept >= choice.min_kept]
        found += alike[:1]
    if choice.prefix is not None:
        found.append(choice.prefix)
    best = [choice.standard, choice.recommended, *found]
    return list({id(row): row for row in best}.values())


def code(choice: Choice, *, source: str, recipes: Mapping[str, str], path: str) -> str:
    """Return Python that makes the recommended loader."""
    configuration = choice.recommended.configuration
    recipe = recipes.get(configuration.split.recipe, configuration.split.recipe)
    batch_size = choice.workload.batch_size
    partial, final = configuration.split.devices
    places = "" if (partial, final) == ("cpu", "cpu") else f', partial_device="{partial}", final_device="{final}"'
    lines = [f"source = {source}"]
    if configuration.reuse_factor == 1:
        lines += [
            f"recipe = {recipe}",
            f"planner = Standard(source, batch_size={batch_size})",
            f"loader = Loader(source, recipe, planner{places})",
        ]
        return "\n".join(lines)
    coverage = "" if configuration.coverage == 1 else f", coverage={configuration.coverage}"
    shards = "" if choice.machine.ranks == 1 else f", shards={choice.machine.ranks}"
    plan = f"batch_size={batch_size}, reuse_factor={configuration.reuse_factor}{coverage}{shards}"
    lines += [
        f"recipe = {recipe}.at({configuration.split.split})  # the final part begins with {configuration.split.final}",
        f"planner = Refurbish(source, {plan})",
        f"loader = Loader(source, recipe, planner, {_store(choice, configuration, path)}{places})",
    ]
    return "\n".join(lines)


def names_of(choice: Choice) -> list[str]:
    """Return the names that the code needs of dalirefurb, beside those of source and recipe."""
    configuration = choice.recommended.configuration
    if configuration.reuse_factor == 1:
        return ["Loader", "Standard"]
    store = _store(choice, configuration, "").partition("(")[0]
    return sorted(["Loader", "Refurbish", store])


def as_dict(choice: Choice) -> dict[str, Any]:
    """Return JSON values."""
    return {
        "verdict": None if choice.verdict is None else str(choice.verdict),
        "headspace": choice.headspace,
        "leave_off": choice.leave_off,
        "min_kept": choice.min_kept,
        "recommended": row(choice.recommended),
        "standard": row(choice.standard),
        "rows": [row(each) for each in choice.rows],
        "machine": asdict(choice.machine),
        "workload": asdict(choice.workload),
        "costs": choice.costs.as_dict(),
    }


def row(prediction: Prediction) -> dict[str, Any]:
    """Return one configuration, and what it reaches, as JSON values."""
    configuration = prediction.configuration
    told = {
        "recipe": configuration.split.recipe,
        "split": configuration.split.split,
        "final": configuration.split.final,
        "reuse_factor": configuration.reuse_factor,
        "coverage": configuration.coverage,
        "tier": configuration.tier,
        "devices": list(configuration.split.devices),
    }
    values = asdict(prediction)
    del values["configuration"]
    return told | values


def _verdict(choice: Choice) -> str:
    standard, times = choice.standard, f"{choice.headspace:.2f} times as fast"
    if choice.verdict is None:
        return (
            f"NO STEP GIVEN: whether training waits cannot be told; loading alone serves {standard.images_per_s:,.0f} "
            f"images/s without reuse"
        )
    if choice.verdict is Verdict.INCONCLUSIVE:
        return (
            f"{choice.verdict}: quartiles lie more than {NOISY:.0%} of the median apart, so something else works on "
            f"this machine; measure again when it is quiet"
        )
    return (
        f"{choice.verdict}: with batches at hand training would be {times} as with standard loading, which reaches "
        f"{standard.images_per_s:,.0f} images/s"
    )


def _recommendation(choice: Choice) -> str:
    recommended, standard = choice.recommended, choice.standard
    if choice.leave_off:
        return "leave reuse off: no configuration that fits and keeps enough is more than 2 % faster than standard"
    return (
        f"take {recommended.configuration.name}: {recommended.images_per_s:,.0f} images/s expected, "
        f"{recommended.images_per_s / standard.images_per_s:.2f} times standard; it keeps {recommended.kept:.3f} of "
        f"the different images"
    )


def _store(choice: Choice, configuration: Configuration, path: str) -> str:
    if configuration.tier in ("memory", "device"):
        return "MemoryStore()" if configuration.tier == "memory" else "DeviceStore()"
    if configuration.tier == "disk":
        return f'DiskStore("{path}")'
    return f'TieredStore(memory={choice.machine.memory_bytes}, path="{path}")'


def _duration(seconds: float) -> str:
    """Write a time.

    >>> _duration(3.25), _duration(400), _duration(9000)
    ('3.2 s', '6.7 min', '2.5 h')
    """
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
