"""`dalirefurb cache`, `keep`, `compile` and `doctor`: what looks after stores, keeps, kernels, and the machine."""

from __future__ import annotations

import argparse
import importlib.util
import json
import time
from dataclasses import asdict
from pathlib import Path

from dalirefurb.cli.codec_noise import without_codec_noise
from dalirefurb.cli.terminal import escaped, importing, say, waiting
from dalirefurb.doctor import Finding, examine
from dalirefurb.errors import ConfigurationError
from dalirefurb.keep import upkeep as keeping
from dalirefurb.store.disk import upkeep
from dalirefurb.system.resources import amount

_SHOWN_VERSIONS = 10


def inspect(options: argparse.Namespace) -> None:
    """Print what is in a store."""
    if keeping.is_keep(options.path):
        keep = keeping.inspect(options.path)
        say(f"keep         {escaped(keep.path)}, {amount(keep.nbytes)}")
        form = keep.identity["form"]
        form = form if isinstance(form, str) else " > ".join(stage["name"] for stage in form["stages"])
        say(f"kept         {keep.kept:,} of {keep.num_samples:,} samples, {form}")
        say("identity")
        say(json.dumps(keep.identity, indent=2))
        return
    found = upkeep.inspect(options.path)
    spec = found.spec
    if spec.slot_shape is None:
        slots = f"of any size, together at most {amount(spec.nbytes)}"
    else:
        slots = f"of {' x '.join(map(str, spec.slot_shape))}, together {amount(spec.nbytes)}"
    say(f"store        {escaped(found.path)}, {amount(found.nbytes)}")
    say(f"in use by    {escaped(found.holder or 'nobody')}")
    say(f"slots        {spec.slots:,} {slots}")
    say(f"held         {found.held:,} samples, {amount(found.held_bytes)}")
    say("fingerprint")
    say(json.dumps(spec.fingerprint, indent=2))


def verify(options: argparse.Namespace) -> int:
    """Read every sample of a store; return 1 if one is damaged, otherwise 0."""
    with waiting(f"reading {escaped(options.path)}"):
        if keeping.is_keep(options.path):
            return _verify_keep(options.path)
        found = upkeep.verify(options.path)
    if found.ok:
        say(f"{escaped(options.path)} is intact: {found.intact:,} samples")
        return 0
    say(
        f"{escaped(options.path)} is not intact. Samples: {found.intact:,} intact, {len(found.damaged):,} damaged; "
        f"slots that do not say what they hold: {found.torn:,}. Nothing damaged is served: it is computed again"
    )
    for index, version in found.damaged[:_SHOWN_VERSIONS]:
        say(f"  damaged: sample {index}, version {version}")
    if len(found.damaged) > _SHOWN_VERSIONS:
        say(f"  and {len(found.damaged) - _SHOWN_VERSIONS:,} more")
    return 1


def _verify_keep(path: Path) -> int:
    """Print whether a keep is intact; return 1 if it is not, otherwise 0."""
    intact, damaged = keeping.verify(path)
    if not damaged:
        say(f"{escaped(path)} is intact: {intact:,} samples")
        return 0
    say(
        f"{escaped(path)} is not intact. Samples: {intact:,} intact, {len(damaged):,} damaged, the first is sample "
        f"{damaged[0]}. Nothing damaged is served: it is made anew"
    )
    return 1


def purge(options: argparse.Namespace) -> None:
    """Delete a store, or a keep."""
    nbytes = (keeping if keeping.is_keep(options.path) else upkeep).purge(options.path)
    say(f"{escaped(options.path)} is deleted: {amount(nbytes)}")


def keep(options: argparse.Namespace) -> None:
    """Fill a keep with a folder's images."""
    with importing():
        from dalirefurb.keep.kept import Kept
        from dalirefurb.source import ImageFolder

    with waiting(f"reading {escaped(options.folder)}"):
        source = ImageFolder(options.folder)
    kept = Kept(source, options.path, form=options.form, size=options.size)
    done = [0]
    with without_codec_noise(), waiting("keeping", lambda: f": {max(done):,} of {len(source):,}"):
        count = kept.fill(told=lambda number: done.append(number))
    nbytes = keeping.inspect(options.path).nbytes
    say(f"{escaped(options.path)} has {count:,} of {len(source):,} samples, {amount(nbytes)}")
    say(f"source = Kept(ImageFolder({str(options.folder)!r}), {str(options.path)!r}, form={options.form!r})")


def compile_kernels(options: argparse.Namespace) -> None:
    """Compile all kernels, and say where they are kept."""
    if importlib.util.find_spec("numba") is None:
        raise ConfigurationError(
            "kernels are compiled by Numba, which cannot be found: pip install numba; without it DALI's operators do "
            "everything, and there is nothing to compile"
        )
    say("compiling the kernels for this processor")
    began = time.perf_counter()
    from dalirefurb.kernels.ahead import compile_ahead

    folder = compile_ahead()
    if folder is None:
        raise ConfigurationError(
            "compiled kernels must be kept in a folder that can be written, but there is none: set NUMBA_CACHE_DIR to "
            "one, here and where training runs"
        )
    say(f"they are there after {time.perf_counter() - began:.1f} s, kept in {escaped(folder)}")


def doctor(options: argparse.Namespace) -> int:
    """Print what is found; return 1 if something will fail."""
    findings: list[Finding] = []
    for finding in examine(options.folder):
        findings.append(finding)
        if not options.json:
            remedy = f"\n{'':9}-> {finding.remedy}" if finding.remedy else ""
            say(escaped(f"{finding.state:<8} {finding.topic}: {finding.said}") + remedy)
    wrong, slow = (sum(finding.state == state for finding in findings) for state in ("wrong", "slow"))
    if options.json:
        say(json.dumps([asdict(finding) for finding in findings], indent=1))
    else:
        say(f"\n{_count(wrong, 'is', 'are')} wrong; {_count(slow, 'slows', 'slow')} a loader down")
    return 1 if wrong else 0


def _count(number: int, one: str, several: str) -> str:
    """Say of how many things something holds.

    >>> _count(0, "is", "are"), _count(1, "is", "are"), _count(2, "is", "are")
    ('nothing is', '1 thing is', '2 things are')
    """
    things = "nothing" if not number else f"{number} thing{'s' * (number > 1)}"
    return f"{things} {several if number > 1 else one}"
