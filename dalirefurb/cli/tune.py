"""`dalirefurb tune`: measures, and says what to set."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from dalirefurb.augment.presets import auto_augment, rand_augment, trivial_augment
from dalirefurb.augment.recipe import Recipe
from dalirefurb.cli.codec_noise import without_codec_noise
from dalirefurb.cli.limits import check_alone, require
from dalirefurb.cli.terminal import escaped, importing, say, waiting
from dalirefurb.errors import ConfigurationError
from dalirefurb.show.files import check_file, check_writable, write, writing
from dalirefurb.source import ImageFolder
from dalirefurb.system.fair_comparison import keep_memory

if TYPE_CHECKING:
    from dalirefurb.tuning.tune import Advice

PRESETS: Mapping[str, Callable[..., Recipe]] = {
    preset.__name__: preset for preset in (rand_augment, auto_augment, trivial_augment)
}
ORDERS = ("paper", "crop_last")


def tune(options: argparse.Namespace) -> int:
    """Print a verdict, what to take, a table, and code; return 1 if nothing is recommended, or a prediction is off."""
    if options.picture is not None:
        require("--picture", "matplotlib")
        check_writable(options.picture, option="--picture")
    if options.json is not None:
        check_file(options.json, what="plan", option="--json")
    if options.machine is not None or options.costs is not None:
        return _elsewhere(options)
    if options.folder is None:
        raise ConfigurationError("tune needs a folder of images, or --costs FILE of an earlier run: pass one of them")
    check_alone()
    with importing():
        from dalirefurb.tuning.tune import check_disk
        from dalirefurb.tuning.tune import tune as measured

    preset = PRESETS[options.preset]
    recipes = {order: preset(options.size, order=order) for order in ORDERS}
    check_disk(options.disk)
    with waiting(f"reading {escaped(options.folder)}"):
        source = ImageFolder(options.folder)
    step = None if options.step_ms is None else options.step_ms / 1e3
    disk = options.disk
    progress = _Progress()
    keep_memory()
    with without_codec_noise(), waiting("tuning", progress.said):
        advice = measured(
            source,
            recipes,
            batch_size=options.batch_size,
            step=step,
            memory=options.memory,
            disk=disk,
            min_kept=options.min_kept,
            epochs=options.epochs,
            limit_s=options.limit,
            told=progress,
        )
    return _said(advice, options)


def _elsewhere(options: argparse.Namespace) -> int:
    """Compute from costs that were measured earlier, for this machine as it was then or for another one."""
    from dalirefurb.tuning.costs import Costs
    from dalirefurb.tuning.machine import read_machine
    from dalirefurb.tuning.model import Machine, Workload
    from dalirefurb.tuning.tune import advise

    if options.costs is None:
        raise ConfigurationError(
            "--machine needs costs that were measured: run dalirefurb tune FOLDER --json costs.json on a machine you "
            "have, and pass --costs costs.json"
        )
    try:
        values = json.loads(options.costs.read_text())
        costs = Costs.from_dict(values["costs"])
        machine, workload = Machine(**values["machine"]), Workload(**values["workload"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigurationError(
            f"--costs must be a file that dalirefurb tune --json wrote, but {options.costs} cannot be read as one: "
            f"{error}; write it anew"
        ) from error
    if options.machine is not None:
        machine, workload = read_machine(options.machine)
    advice = advise(costs, machine, workload, min_kept=options.min_kept)
    return _said(advice, options)


class _Progress:
    """Keeps what is being done, for whoever tells of progress."""

    def __init__(self) -> None:
        self._line = ""

    def __call__(self, line: str) -> None:
        self._line = line

    def said(self) -> str:
        return f": {self._line}"


def _code(advice: Advice, options: argparse.Namespace) -> str:
    """Return a script's first lines, to paste."""
    from dalirefurb.tuning.report import names_of

    recipes = {
        order: f"{options.preset}({options.size}{'' if order == ORDERS[0] else f', order={order!r}'})"
        for order in ORDERS
    }
    path = "/local/cache" if options.disk is None else str(options.disk / "cache")
    folder = "photos" if options.folder is None else str(options.folder)
    names = sorted({"ImageFolder", options.preset, *names_of(advice.choice)}, key=lambda name: (name.islower(), name))
    imports = [f"from dalirefurb import {', '.join(name for name in names if name != 'DeviceStore')}"]
    imports += ["from dalirefurb.store import DeviceStore"] * ("DeviceStore" in names)
    lines = advice.code(source=f"ImageFolder({folder!r})", recipes=recipes, path=path)
    return "\n".join(map(escaped, [*imports, "", *lines.split("\n")]))


def _said(advice: Advice, options: argparse.Namespace) -> int:
    """Print it all, write plan and picture, where they are asked for, and return the exit status."""
    say(str(advice))
    if advice.recommended is not None:
        say(f"\n{_code(advice, options)}")
    if options.json is not None:
        with writing(options.json, what="plan", option="--json"):
            options.json.write_text(json.dumps(advice.as_dict(), indent=1) + "\n")
        say(f"\nwritten: {escaped(options.json)}")
    if options.picture is not None:
        write(options.picture, advice.figure(), option="--picture")
        say(f"drawn: {escaped(options.picture)}")
    holds = not options.verify or all(each.holds for each in advice.choice.verified)
    return 0 if advice.recommended is not None and holds else 1
