"""`dalirefurb tune`: measures, and says what to set, also on a machine that a TOML file describes, as --help shows."""

from __future__ import annotations

import argparse
import ast
import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dalirefurb
from dalirefurb.checks import integer, number
from dalirefurb.checks import require as must
from dalirefurb.cli.codec_noise import without_codec_noise
from dalirefurb.cli.limits import check_alone, require
from dalirefurb.cli.show import PRESETS
from dalirefurb.cli.techniques import flag
from dalirefurb.cli.terminal import escaped, importing, say, waiting
from dalirefurb.errors import ConfigurationError
from dalirefurb.show.files import check_file, check_writable, write, writing
from dalirefurb.source import ImageFolder
from dalirefurb.system.resources import budget_bytes
from dalirefurb.system.threads import keep_memory

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from dalirefurb.tuning.model import Machine, Workload
    from dalirefurb.tuning.report import Advice

TUNED = ("rand_augment", "auto_augment", "trivial_augment")
"""Presets that it knows."""

ORDERS = ("paper", "crop_last")

MEASURED_WITH: Mapping[str, Any] = {"preset": "rand_augment", "size": 224}
"""Options of a measurement that are written down with its costs, and what they are where they are not given."""

OF_MEASUREMENT: Mapping[str, Any] = {"batch_size": 64, "epochs": 90, "step_ms": None, "memory": "60%", "limit": 120}
"""Options to which costs that are there already have answers of their own, and what they are otherwise."""

_BYTES = {
    "memory": "memory_bytes",
    "disk": "disk_bytes",
    "device_memory": "device_bytes",
    "page_cache": "page_cache_bytes",
    "source_bandwidth": "source_bytes_per_s",
    "disk_read": "disk_read_bytes_per_s",
    "disk_write": "disk_write_bytes_per_s",
}
_TABLES = {
    "machine": {"cores", "gpus", "core_speed", *_BYTES},
    "training": {"num_samples", "batch_size", "epochs", "step_ms"},
}
"""Names that each table of a machine's file may have."""


def tune(options: argparse.Namespace) -> int:
    """Print a verdict, what to take, a table, and code; return 1 if nothing is recommended, or a prediction is off."""
    if options.picture is not None:
        require("--picture", "matplotlib")
        check_writable(options.picture, option="--picture")
    if options.json is not None:
        check_file(options.json, what="plan", option="--json")
    if options.machine is not None or options.costs is not None:
        return _said(_elsewhere(options), options)
    if options.folder is None:
        raise ConfigurationError("tune needs a folder of images, or --costs FILE of an earlier run: pass one of them")
    check_alone()
    with importing():
        from dalirefurb.tuning.tune import check_disk
        from dalirefurb.tuning.tune import tune as measured

    for name, usual in {**MEASURED_WITH, **OF_MEASUREMENT}.items():
        if getattr(options, name) is None:
            setattr(options, name, usual)
    preset = PRESETS[options.preset]
    recipes = {order: preset(options.size, order=order) for order in ORDERS}
    check_disk(options.disk)
    with waiting(f"reading {escaped(options.folder)}"):
        source = ImageFolder(options.folder)
    lines = [""]
    keep_memory()
    with without_codec_noise(), waiting("tuning", lambda: f": {lines[-1]}"):
        advice = measured(
            source,
            recipes,
            batch_size=options.batch_size,
            step=None if options.step_ms is None else options.step_ms / 1e3,
            memory=options.memory,
            disk=options.disk,
            min_kept=options.min_kept,
            epochs=options.epochs,
            limit_s=options.limit,
            told=lines.append,
        )
    return _said(advice, options)


def _elsewhere(options: argparse.Namespace) -> Advice:
    """Compute from costs that were measured earlier, for this machine as it was then or for another one."""
    from dalirefurb.checks import dataclass_of
    from dalirefurb.tuning.costs import Costs
    from dalirefurb.tuning.model import Machine, Workload
    from dalirefurb.tuning.tune import advise

    if options.costs is None:
        raise ConfigurationError(
            "--machine needs costs that were measured: run dalirefurb tune FOLDER --json costs.json on a machine you "
            "have, and pass --costs costs.json"
        )
    for name in (*OF_MEASUREMENT, "verify"):
        if (given := getattr(options, name)) not in (None, False):
            raise ConfigurationError(
                f"{flag(name)} changes nothing with --costs, got {given}; leave one of them out, or describe machine "
                "and training with --machine FILE"
            )
    try:
        values = json.loads(options.costs.read_text())
        costs = Costs.from_dict(values["costs"])
        machine = dataclass_of(Machine, values["machine"], "machine")
        workload = dataclass_of(Workload, values["workload"], "workload")
        told = {name: value for name in MEASURED_WITH if (value := values.get(name)) is not None}
        must(told.get("preset", TUNED[0]) in TUNED, "preset", f"one of {', '.join(TUNED)}", told.get("preset"), "")
        integer("size", told.get("size", 1), 1, None, "")
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigurationError(
            f"--costs must be a file that dalirefurb tune --json wrote, but {options.costs} cannot be read as one: "
            f"{error}; write it anew"
        ) from error
    for name, usual in MEASURED_WITH.items():  # Of what was measured is the code.
        given = getattr(options, name)
        if given is not None and given != told.get(name, given):
            raise ConfigurationError(
                f"{flag(name)} must be what the costs were measured with, {told[name]}, got {given}: leave it out"
            )
        setattr(options, name, told.get(name, usual if given is None else given))
    if options.machine is not None:
        machine, workload = _described(options.machine)
    return advise(costs, machine, workload, min_kept=options.min_kept)


def _described(path: Path) -> tuple[Machine, Workload]:
    """Read the machine and the training that a file describes; refuse what it cannot say."""
    from dalirefurb.tuning.model import Machine, Workload

    try:
        values = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(
            f"a machine must be described by a TOML file, but {path} cannot be read as one: {error}; "
            f"see `dalirefurb tune --help`"
        ) from error
    machine, training = (_table(values, name) for name in _TABLES)
    ranks = integer("gpus", machine.get("gpus", 1), 1, None, "pass the number of processes that train together")
    nbytes = {
        field: budget_bytes(machine[name], available=lambda: None) for name, field in _BYTES.items() if name in machine
    }
    cores = integer("cores", machine.get("cores"), 1, None, "write the number of cores")
    for name in ("source_bandwidth", "disk_read", "disk_write"):
        remedy = "leave it out: as measured"
        must(nbytes.get(_BYTES[name], 1) > 0, name, "more than no bytes a second", machine.get(name), remedy)
    remedy = "write a multiple of gpus"
    name = "batch_size of [training]"  # not the option
    batch_size = integer(name, training.get("batch_size", 64), 1, None, remedy)
    must(batch_size % ranks == 0, name, f"a multiple of gpus = {ranks}", batch_size, remedy)
    samples = integer("num_samples", training.get("num_samples"), batch_size, None, "write the samples of an epoch")
    epochs = integer("epochs of [training]", training.get("epochs", 90), 1, None, "write the number of epochs")
    name, step_ms = "step_ms of [training]", training.get("step_ms", 0)
    step_ms = number(name, step_ms, "of at least 0", lambda ms: 0 <= ms < math.inf, "left out: no step")
    return (
        Machine(cores, ranks=ranks, core_speed=machine.get("core_speed", 1.0), **{"memory_bytes": 0, **nbytes}),
        Workload(samples, batch_size, epochs, step_ms / 1e3),
    )


def _table(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return one table of the file, which may hold known names only."""
    table = values.get(name)
    must(isinstance(table, dict), f"[{name}]", "a table of the file", table, f"write [{name}], and its values below")
    known, found = _TABLES[name], dict(table or {})
    unknown = sorted(set(found) - known)
    must(not unknown, f"[{name}]", f"of {', '.join(sorted(known))}", ", ".join(unknown), "leave out what is unknown")
    return found


def _code(advice: Advice, options: argparse.Namespace) -> str:
    """Return a script's first lines, to paste."""
    recipes = {
        order: f"{options.preset}({options.size}{'' if order == ORDERS[0] else f', order={order!r}'})"
        for order in ORDERS
    }
    path = "/local/cache" if options.disk is None else str(options.disk / "cache")
    folder = "photos" if options.folder is None else str(options.folder)
    code = advice.code(source=f"ImageFolder({folder!r})", recipes=recipes, path=path)
    used = {each.id for each in ast.walk(ast.parse(code)) if isinstance(each, ast.Name)}
    imports = [f"from dalirefurb import {', '.join(name for name in dalirefurb.__all__ if name in used)}"]
    imports += ["from dalirefurb.store import DeviceStore"] * ("DeviceStore" in used)
    return "\n".join(map(escaped, [*imports, "", *code.split("\n")]))


def _said(advice: Advice, options: argparse.Namespace) -> int:
    """Print it all, write plan and picture, where they are asked for, and return the exit status."""
    say(str(advice))
    if advice.recommended is not None:
        say(f"\n{_code(advice, options)}")
    if options.json is not None:
        with writing(options.json, what="plan", option="--json"):
            measured_with = {name: getattr(options, name) for name in MEASURED_WITH}
            options.json.write_text(json.dumps(advice.as_dict() | measured_with, indent=1) + "\n")
        say(f"\nwritten: {escaped(options.json)}")
    if options.picture is not None:
        write(options.picture, advice.figure(), option="--picture")
        say(f"drawn: {escaped(options.picture)}")
    holds = not options.verify or all(each.holds for each in advice.verified)
    return 0 if advice.recommended is not None and holds else 1
