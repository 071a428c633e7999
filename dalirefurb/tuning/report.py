"""Report of what to set: the verdict first, then a table, and code to paste; as JSON; and as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from dalirefurb.errors import DalirefurbError
from dalirefurb.show import CACHED, GREY, INK
from dalirefurb.system.resources import amount
from dalirefurb.tuning.choice import AS_FAST, RESERVE, Choice
from dalirefurb.tuning.costs import ORDERS, REUSE_FACTORS, SplitCosts
from dalirefurb.tuning.model import Configuration, Prediction, predict

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Advice(Choice):
    """What to set, and why; or what is missing to say so. `print(advice)` tells it; `advice.code()` is to be pasted."""

    def __str__(self) -> str:
        """Say all of it; where nothing is recommended without the table, in which something would be the fastest."""
        notes = [f"note: {note}" for note in self.costs.notes]
        turns = ["", "in turns:", *map(str, self.verified)] if self.verified else []
        found = [] if self.recommended is None else ["", table(self), "", forms(self), *turns]
        return "\n".join([_verdict(self), _recommendation(self), _assumed(self), *found, *notes])

    __repr__ = __str__

    def code(
        self, *, source: str = "source", recipes: Mapping[str, str] | None = None, path: str = "/local/cache"
    ) -> str:
        """Return Python that makes the recommended loader, of several ranks that of the one in whose process it runs.

        Args:
            source: Code of the source.
            recipes: Code of each recipe by its name; by default the names themselves.
            path: Path of the file of a `DiskStore`; several ranks have a file each, of that name and their number.

        Raises:
            DalirefurbError: If nothing is recommended.
        """
        if self.recommended is None:
            raise DalirefurbError(f"code needs something that is recommended, but nothing is: {self.missing}")
        configuration, ranks = self.recommended.configuration, self.machine.ranks
        split = configuration.split
        made, store = (recipes or {}).get(split.recipe, split.recipe), ""
        plan = f"batch_size={self.workload.batch_size}"
        shards = "" if ranks == 1 else f", shards={ranks}"
        kept = _kept(self, configuration, source, path)
        if configuration.reuse_factor == 1 or kept is not None:
            planner = f"Standard(source, {plan}{shards})"
        else:
            made = f"{made}.at({split.split})  # cached {split.place}"
            plan = f"{plan}, reuse_factor={configuration.reuse_factor}"
            coverage = "" if configuration.coverage == 1 else f", coverage={configuration.coverage}"
            for_ever = "  # all epochs: what is kept is not random" * configuration.is_for_ever(self.workload)
            planner = f"Refurbish(source, {plan}{coverage}{shards}){for_ever}"
            store = f", {_store(self, configuration, path)}"
        partial, final = split.devices
        places = "" if (partial, final) == ("cpu", "cpu") else f', partial_device="{partial}", final_device="{final}"'
        lines = [
            *(["import os", ""] if "os.environ" in store else []),
            f"source = {kept or source}",
            f"recipe = {made}",
            f"planner = {planner}",
            f"loader = Loader(source, recipe, planner{store}{places})",
        ]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as JSON values; `Costs.from_dict` reads its "costs"."""
        return {
            "verdict": None if self.verdict is None else str(self.verdict),
            "headspace": self.headspace,
            "leave_off": self.leave_off,
            "min_kept": self.min_kept,
            "recommended": None if self.recommended is None else _row(self.recommended),
            "missing": self.missing,
            "verified": [asdict(each) | {"prediction": _row(each.prediction)} for each in self.verified],
            "standard": _row(self.standard),
            "rows": [_row(each) for each in self.rows],
            "machine": asdict(self.machine),
            "workload": asdict(self.workload),
            "costs": self.costs.as_dict(),
        }

    def figure(self) -> Figure:
        """Draw images/s against the reuse factor for each split, with the step's line. Needs Matplotlib.

        There is a panel for each recipe: full lines keep enough of the different images, dotted ones do not.
        """
        from matplotlib.figure import Figure

        names = list(dict.fromkeys(split.recipe for split in self.costs.splits))
        figure = Figure(figsize=(0.6 + 5.2 * len(names), 5.2), layout="constrained")
        panels = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
        taken = None if self.recommended is None else self.recommended.configuration
        alone = replace(self.workload, step_s=0.0, step_cpu_s=0.0)
        speed = 0.0 if taken is None else predict(self.costs, self.machine, alone, taken).images_per_s
        top = _HEADROOM * max([speed, *(max(_speeds(self, split)) for split in self.costs.splits)])
        for name, axes in zip(names, panels, strict=True):
            _draw_recipe(axes, self, [split for split in self.costs.splits if split.recipe == name], top)
            axes.set_title(ORDERS.get(name, name), fontsize=10)
            if taken is not None and taken.split.recipe == name:
                axes.plot([min(taken.reuse_factor, _FACTORS[-1])], [speed], "o", color=CACHED, markersize=9, zorder=3)
        panels[0].set_ylabel("images/s, loading alone")
        said = f"nothing is recommended: {self.missing}"
        if taken is not None:
            said = f"the dot is what to take: {self.name_of(taken)}"
        kept = f"lines: where images are cached; full where at least {self.min_kept:g} of the different images are kept"
        lines = [line for each in (said, kept) for line in wrap(each, _CHARACTERS * len(names))]
        figure.suptitle("\n".join(lines), fontsize=9)
        return figure


_KEEP_IN_MEMORY = "/dev/shm/dalirefurb-keep"

_DECODE = "decode"
"""Name of the stage that decodes."""


def table(choice: Choice) -> str:
    """Set the best of each kind beside standard."""
    standard = choice.standard
    head = ["", "images/s", "of standard", "kept", "memory", "disk", "device", "epoch 0", "run", "limited by"]
    rows = [
        [
            ("* " if row == choice.recommended else "  ") + choice.name_of(row.configuration),
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
    lines = _columns([head, *rows], right=True)
    beside = f"computed; of standard: as a multiple of {standard.configuration.name}"
    return "\n".join([*lines, f"{beside}; run: {choice.workload.epochs} epochs; * what to take"])


def forms(choice: Choice) -> str:
    """Say what all images take as they are read, decoded and as partial ones, where they have room, what it brings.

    That is by the fastest configuration that keeps enough of the different images.
    """
    costs, machine, count = choice.costs, choice.machine, choice.workload.num_samples
    lines = [["what can be kept", "bytes", "has room in", "images/s", "of standard"]]
    reused = [row for row in choice.rows if row.configuration.reuse_factor > 1 and row.kept >= choice.min_kept]
    for form, cached in (("files, form='encoded'", ""), ("decoded images", _DECODE), ("partial images", None)):
        alike = [
            row for row in reused if (row.configuration.split.cached == cached if cached is not None else row.kept < 1)
        ]
        whole = {split.cached: count * split.image_bytes for split in costs.splits} | {"": count * costs.encoded_bytes}
        taken = alike[0].memory_bytes + alike[0].disk_bytes if alike else 0
        if nbytes := round(taken if cached is None else whole.get(cached, 0)):
            rooms = {"memory": machine.memory_bytes, "disk": machine.disk_bytes}
            room = ", ".join(place for place, most in rooms.items() if most >= nbytes) or "-"
            speed = alike[0].images_per_s if alike else 0
            brings = [f"{speed:,.0f}", f"{speed / choice.standard.images_per_s:.2f}"] if alike else ["-", "-"]
            lines.append([form, amount(nbytes), room, *brings])
    return "\n".join(_columns(lines))


def _columns(lines: Sequence[Sequence[str]], *, right: bool = False) -> list[str]:
    """Write cells below each other, those of the first column, or of all, at the left."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    form = "  ".join(f"{{:{'>' if right and place else '<'}{width}}}" for place, width in enumerate(widths))
    return [form.format(*line).rstrip() for line in lines]


def shown(choice: Choice) -> list[Prediction]:
    """Return standard, what to take, the fastest of each reuse factor that keeps enough, and what HyCache would do."""
    found = [row for row in choice.rows if row.configuration.reuse_factor == 1 and row != choice.standard]
    for factor in REUSE_FACTORS:
        alike = [row for row in choice.rows if row.configuration.reuse_factor == factor and row.kept >= choice.min_kept]
        found += alike[:1]
    if choice.prefix is not None:
        found.append(choice.prefix)
    taken = [] if choice.recommended is None else [choice.recommended]
    rows = [choice.standard, *taken, *found]
    return [row for place, row in enumerate(rows) if row not in rows[:place]]


def _row(prediction: Prediction) -> dict[str, Any]:
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
    standard = choice.standard
    if choice.missing:
        return f"{choice.verdict}: {choice.missing}"
    if choice.verdict is None:
        return (
            f"NO STEP GIVEN: whether training waits cannot be told; loading alone serves {standard.images_per_s:,.0f} "
            f"images/s without reuse"
        )
    return (
        f"{choice.verdict}: with batches at hand training would be {choice.headspace:.2f} times as fast as with "
        f"{standard.configuration.name}, which reaches {standard.images_per_s:,.0f} images/s"
    )


def _recommendation(choice: Choice) -> str:
    recommended, standard = choice.recommended, choice.standard
    if recommended is None:
        return "nothing is recommended, not even to leave reuse off"
    if recommended == standard:
        reason = "no configuration that fits and keeps enough is more than 2 % faster than"
        return f"leave reuse off: {reason} {standard.configuration.name}{', as computed' * (not choice.verified)}"
    how = "reached" if choice.verified else "computed, not run"
    told = [f"{choice.speed_of(recommended):,.0f} images/s {how}, {_compared(choice, recommended)}"]
    if not choice.leave_off and recommended.configuration.split.deterministic:
        told.append("every epoch is as fresh as standard's")
        if recommended.configuration.is_keep(choice.workload):
            told.append("reuse can go on top of it")
    elif not choice.leave_off:
        told.append(f"it keeps {recommended.kept:.3f} of the different images")
    if not choice.leave_off and recommended.images_per_s <= (1 + AS_FAST) * standard.images_per_s:
        told.append(f"in reserve: a step is not {RESERVE:g} times as long as a batch takes without reuse")
    first, taken = (row.configuration.split.recipe for row in (standard, recommended))
    if taken != first:
        what = "the order of operations" if {first, taken} <= set(ORDERS) else "the recipe"
        told.append(f"this changes {what}, from {ORDERS.get(first, first)} to {ORDERS.get(taken, taken)}")
    off = "leave reuse off, and " if choice.leave_off else ""
    return f"{off}take {choice.name_of(recommended.configuration)}: {'; '.join(told)}"


def _compared(choice: Choice, recommended: Prediction) -> str:
    """Set what to take beside standard of the first recipe, and beside standard of its own."""
    recipe, speed = recommended.configuration.split.recipe, choice.speed_of(recommended)
    usual = [row for row in choice.rows if row.configuration.reuse_factor == 1]
    own = [
        row for row in usual if row.configuration.split.recipe == recipe and row not in (choice.standard, recommended)
    ]
    beside = [choice.standard, *own[:1]] if recipe != choice.standard.configuration.split.recipe else [choice.standard]
    return ", ".join(f"{speed / choice.speed_of(row):.2f} times {row.configuration.name}" for row in beside)


def _assumed(choice: Choice) -> str:
    """Say what all of it is for."""
    workload, machine = choice.workload, choice.machine
    ranks = "" if machine.ranks == 1 else f" on {machine.ranks} ranks"
    step = (
        f"a step of {1e3 * workload.step_s:.4g} ms"
        if workload.step_s
        else "no step given (--step-ms, or step= in Python)"
    )
    places = {"memory": machine.memory_bytes, "disk": machine.disk_bytes, "GPU memory": machine.device_bytes}
    room = " and ".join(f"{amount(nbytes)} of {place}" for place, nbytes in places.items() if nbytes)
    return (
        f"assumed: batches of {workload.batch_size}{ranks}, {step}; {workload.epochs} epochs of "
        f"{workload.num_samples:,} images; at most {room or 'nothing'} for a cache"
    )


def _kept(choice: Choice, configuration: Configuration, source: str, path: str) -> str | None:
    """Return code of a keep, if that is what a configuration comes to: nothing is cached but what was decoded."""
    decoded = configuration.is_for_ever(choice.workload) and configuration.split.cached == _DECODE
    places = {"memory": (_KEEP_IN_MEMORY, choice.machine.memory_bytes), "disk": (path, choice.machine.disk_bytes)}
    if not decoded or configuration.tier not in places:
        return None
    folder, nbytes = places[configuration.tier]
    return f"Kept({source}, {folder!r}, size={nbytes})  # decoded once, for all trainings"


def _store(choice: Choice, configuration: Configuration, path: str) -> str:
    if configuration.tier in ("memory", "device"):
        return "MemoryStore()" if configuration.tier == "memory" else "DeviceStore()"
    # Each rank has a file of its own, and its share of the memory.
    ranks = choice.machine.ranks
    file = repr(path) if ranks == 1 else f'{path + "-"!r} + os.environ["RANK"]'
    if configuration.tier == "disk":
        return f"DiskStore({file})"
    return f"TieredStore(memory={choice.machine.memory_bytes // ranks}, path={file})"


def _duration(seconds: float) -> str:
    """Write a time.

    >>> _duration(3.25), _duration(119), _duration(120), _duration(7000), _duration(9000)
    ('3.2 s', '119.0 s', '2.0 min', '116.7 min', '2.5 h')
    """
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


_FACTORS = (1, *REUSE_FACTORS)
_LEAST_DISTANCE = 0.05
"""Of two labels, as a share of the picture's height."""

_HEADROOM = 1.1
_CHARACTERS = 62
"""Of a line above each panel."""


def _draw_recipe(axes: Axes, choice: Choice, splits: Sequence[SplitCosts], top: float) -> None:
    axes.set_ylim(0, top)
    axes.set_xlim(0.8, _FACTORS[-1] + 0.1)
    ends = []
    for number, split in enumerate(splits):
        factors = [factor for factor in _FACTORS if factor in split.kept]
        speeds, colour = _speeds(choice, split), f"C{number}"
        enough = sum(split.kept[factor] >= choice.min_kept for factor in factors)
        axes.plot(factors, speeds, ":", color=colour, linewidth=1.2)
        axes.plot(factors[:enough], speeds[:enough], "-", color=colour, linewidth=1.8)
        if len(factors) > 1:
            ends.append((speeds[-1], split.place, colour))
    if choice.workload.step_s:
        limit = choice.workload.batch_size / choice.workload.step_s
        axes.axhline(limit, color=GREY, linewidth=1)
        ends.append((min(limit, top), f"a step can use {limit:,.0f}", INK))
    ends.sort()
    for height, (_, label, colour) in zip(_apart([end[0] for end in ends], top), ends, strict=True):
        beside = axes.get_yaxis_transform()
        axes.text(1.01, height, label, fontsize=8, color=colour, va="center", transform=beside)
    axes.set_xticks(_FACTORS)
    axes.set_xlabel("reuse factor")
    axes.spines[["top", "right"]].set_visible(False)


def _speeds(choice: Choice, split: SplitCosts) -> list[float]:
    """Return images/s at each reuse factor, with all samples in memory, however much that is, and no step."""
    loading = replace(choice.workload, step_s=0.0, step_cpu_s=0.0)
    rows = [
        Configuration(split, factor, 1.0, "device" if split.on_device else "memory")
        for factor in _FACTORS
        if factor in split.kept
    ]
    return [predict(choice.costs, choice.machine, loading, row).images_per_s for row in rows]


def _apart(heights: Sequence[float], top: float) -> list[float]:
    """Move rising heights up until none is too close to the one below it, then down until all are below the top."""
    for _ in range(2):
        found: list[float] = []
        for height in heights:
            found.append(max(height, found[-1] + _LEAST_DISTANCE * top if found else 0.0))
        heights = [top - height for height in reversed(found)]
    return list(heights)
