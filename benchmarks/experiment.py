"""The frame of a script: its command line, its sizes, and where its results go.

    arguments ▏ what cannot work is refused ▏ sizes ▏ environment ▏ contenders take turns, tables are printed ▏ JSON

Sizes are a frozen dataclass: those of a whole run, or tiny ones. An option replaces the field that has its name, and
`data` becomes the name of the folder. The script itself is a function of sizes and arguments.
"""

from __future__ import annotations

import inspect
import json
import os
import platform
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Generic, NoReturn, TypeVar

import harness
from claims import impossible, stated

from dalirefurb import ImageFolder
from dalirefurb.errors import ConfigurationError
from dalirefurb.system.threads import keep_memory

RESULTS = Path(__file__).parent / "results"
DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
PHOTOS, CIFAR10 = DATA / "photos", DATA / "cifar10"

REFUSED = "what was measured is not what is claimed of it, and is no result; run it again, or mend the script"

Config = TypeVar("Config")
Options = Namespace


@dataclass(frozen=True)
class Experiment(Generic[Config]):
    """A script.

    Attributes:
        measure: Takes every figure of the sizes and the arguments, prints the tables, and returns what the JSON holds;
            None if it has written that itself, to the argument `out`. Its module says what `--help` says.
        config: Sizes of a whole run, a frozen dataclass.
        quick: Tiny sizes, for `--quick`.
        options: Further arguments, as `ArgumentParser.add_argument` takes them; by default each is None.
        data: The default folder, `PHOTOS` or `CIFAR10`; None if none is read.
        keeps_memory: Whether contenders take turns in memory that the process never gives back.
        holds: Whether results keep what is promised beside the claims in them: if not, the script ends with 1.
        name: Of the JSON; by default that of the file of `measure`.
    """

    measure: Callable[[Config, Options], Any]
    config: Config
    quick: Config
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    data: Path | None = PHOTOS
    keeps_memory: bool = False
    holds: Callable[[Any], bool] = lambda results: True
    name: str = ""

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """Run what the command line asks for.

        Results above what is possible are refused: they go into a file beside, for whoever looks for the fault.
        """
        options, config = self.read(arguments)
        if self.keeps_memory:
            keep_memory()
        where = environment()
        with ExitStack() as stack:
            draft = options.quick or self._is_draft(config)
            if options.out is None:
                folder = stack.enter_context(TemporaryDirectory()) if draft else RESULTS
                options.out = Path(folder) / self.file_name
            results = self.measure(config, options)
            wrong = [] if options.quick else impossible(results)
            if results is not None:
                out = options.out.with_suffix(".refused.json") if wrong else options.out
                write(out, environment=where, config=config, results=results, draft=draft)
        for claim in wrong:
            print(f"{claim.name} cannot exceed {claim.bound:.4g}, but is {claim.figure:2}: {REFUSED}", file=sys.stderr)
        held = self.holds(results) and all(claim.holds for claim in stated(results))
        return 1 if wrong or not (options.quick or held) else 0

    def _is_draft(self, config: Config) -> bool:
        """Whether the rounds are fewer than its own: then nothing goes into `results/`."""
        own, asked = (getattr(each, "rounds", 0) for each in (self.config, config))
        return bool(asked < own)

    @property
    def file_name(self) -> str:
        """Of the JSON."""
        return f"{self.name or Path(inspect.getfile(self.measure)).stem}.json"

    def read(self, arguments: Sequence[str] | None = None) -> tuple[Options, Config]:
        """Return the arguments of a command line, and the sizes that they ask for."""
        options = self.parser().parse_args(arguments)
        config: Any = self.quick if options.quick else self.config
        sizes = {each.name for each in fields(config)}
        given = {name: value for name, value in vars(options).items() if name in sizes and value is not None}
        if self.data is not None:
            check = check_mosaics if self.data == CIFAR10 else check_photographs
            check(options.data)
            given |= {"data": options.data.resolve().name} if "data" in sizes else {}
        return options, replace(config, **{k: tuple(v) if isinstance(v, list) else v for k, v in given.items()})

    def parser(self) -> ArgumentParser:
        """Make what reads the command line."""
        parser = ArgumentParser(description=str(inspect.getmodule(self.measure).__doc__).partition("\n")[0])
        if self.data is not None:
            kind = "of CIFAR-10 as mosaics" if self.data == CIFAR10 else "of images per class"
            parser.add_argument("--data", type=Path, default=self.data, help=f"a folder {kind}")
        if (rounds := getattr(self.config, "rounds", None)) is not None:
            parser.add_argument(
                "--rounds", type=int, help=f"slices of each contender; fewer than {rounds} make a draft"
            )
        parser.add_argument("--quick", action="store_true", help="tiny sizes; written only where --out says")
        parser.add_argument("--out", type=Path, help=f"results/{self.file_name} beside this script by default")
        for option, settings in self.options.items():
            parser.add_argument(option, **settings)
        return parser


class Record:
    """Rows of measurements that outlast a call: the JSON is written whenever some are added, and a later call goes on.

    Args:
        path: Of the JSON, where an earlier call may have left it.
        config: A dataclass of what is run; an earlier call must have run the same.
        kinds: The dataclass of each kind of rows.

    Attributes:
        rows: By kind, in the order in which they were added.
    """

    def __init__(self, path: Path, config: Any, kinds: Mapping[str, type]) -> None:
        import torch  # not before it is needed: some scripts measure the memory of a process without it

        self._path, self._config = path, config
        self._calls: list[dict[str, Any]] = []
        self.rows: dict[str, list[Any]] = {kind: [] for kind in kinds}
        if path.exists():
            found = json.loads(path.read_text())
            if found["config"] != json.loads(json.dumps(asdict(config))):
                refuse(f"{path} must be a result of this configuration, but is another's: pass another --out")
            self._calls = found["results"]["calls"]
            self.rows = {kind: [make(**row) for row in found["results"][kind]] for kind, make in kinds.items()}
        self._calls.append(
            {**environment(), "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None}
        )

    def write(self, *, draft: bool = False, **follows: Any) -> None:
        """Replace the JSON, whole or not at all, by all rows and what follows; a draft while some rows are left."""
        new = self._path.with_suffix(".new")
        results = {**follows, **self.rows, "calls": self._calls}
        write(new, environment=self._calls[0], config=self._config, results=results, draft=draft)
        new.replace(self._path)


def refuse(message: str) -> NoReturn:
    """End the script for an argument that cannot work.

    Raises:
        SystemExit: With 2, as for arguments that cannot be read.
    """
    print(message, file=sys.stderr)
    raise SystemExit(2)


def check_photographs(data: Path) -> None:
    """Refuse a folder that holds no images in folders of classes."""
    try:
        ImageFolder(data)
    except ConfigurationError as error:
        refuse(f"--data must hold one folder of images per class: {error}")


def check_mosaics(data: Path, option: str = "--data", part: str = "train") -> None:
    """Refuse a folder that holds no CIFAR-10 as mosaics."""
    if not any(data.glob(f"{part}_[0-9]_*.webp")):
        refuse(
            f"{option} must be a folder of mosaics of images, train_<label>_<name>.webp and test_<label>_<name>.webp, "
            f"but {data} holds none: pass another"
        )


def environment() -> dict[str, Any]:
    """Describe the machine and the software, without names of hosts or folders. Asked before the run, for the load."""
    return {
        "harness": harness.VERSION,
        "cpu": _cpu_model(),
        "cores": harness.cores(),
        "load_1min": round(os.getloadavg()[0], 2),
        "system": platform.system(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "dali": _version("nvidia-dali-cuda120") or _version("nvidia-dali-cuda130"),
        "torch": _version("torch"),
        "numpy": _version("numpy"),
        "numba": _version("numba"),
        "dalirefurb": _version("dalirefurb"),
        "commit": _git("rev-parse", "HEAD"),
        "uncommitted_changes": bool(_git("status", "--porcelain")),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
    }


def write(path: Path, *, environment: dict[str, Any], config: Any, results: Any, draft: bool = False) -> None:
    """Write one run: where and what was run, and everything that was measured. Dataclasses become objects."""
    run = {"environment": environment, "config": config, "results": results, **({"draft": True} if draft else {})}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(run, indent=1, default=asdict) + "\n")


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    """Ask git about the project, None where there is no git or no repository."""
    try:
        done = subprocess.run(["git", *arguments], cwd=RESULTS.parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
