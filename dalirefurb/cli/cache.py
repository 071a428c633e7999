"""`dalirefurb cache`: looks into a store's file, reads it through, or deletes it."""

from __future__ import annotations

import argparse
import json

from dalirefurb.cli.progress import waiting
from dalirefurb.cli.terminal import escaped, say
from dalirefurb.store.disk import upkeep
from dalirefurb.store.memory_budget import amount

_SHOWN_VERSIONS = 10


def inspect(options: argparse.Namespace) -> None:
    """Print what is in a store."""
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


def purge(options: argparse.Namespace) -> None:
    """Delete a store."""
    say(f"{escaped(options.path)} is deleted: {amount(upkeep.purge(options.path))}")
