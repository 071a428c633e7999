"""Catalogue of probes: each is a function of its own, run in a process of its own. No torch or DALI is imported here.

What is to be done where a probe is wrong is said here, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Probe:
    """A probe.

    Attributes:
        name: For the record and the table.
        function: Its module in this package and its name there, "module:name".
        if_wrong: What helps then.
        on_cpu: What a run without a GPU shows: that the probe is right ("yes"), that its code runs ("code"), or
            nothing, so it is not run ("no").
        limit_s: Time after which it hangs, in seconds.
        ends: How its process has to end, for those that show what becomes of one that ends otherwise.
        dry_only: Whether it is run only without a GPU, for it shows something about this script.
    """

    name: str
    function: str
    if_wrong: str
    on_cpu: Literal["yes", "code", "no"] = "yes"
    limit_s: float = 100.0
    ends: str = ""
    dry_only: bool = False


_DECODER = "see the arguments in Decode._arguments (dalirefurb/augment/stages/decode.py)"
_ISSUE_55 = "windows stay cut from whole images on a GPU, as they are (REGIONS_ON_GPU = False, nvImageCodec issue 55)"
_SERVED = "run tests/engine/test_placements.py; the first batch that differs says which part of the recipe it is"

PROBES = (
    Probe("versions", "machine:versions", "docs/gpu.md says which packages belong together", "code", 60),
    Probe(
        "import order", "machine:import_order", "say in docs/gpu.md which package must be imported first", "code", 200
    ),
    Probe(
        "kernels", "kernels:bits", "see dalirefurb/kernels/cuda: the first case that differs says which", limit_s=200
    ),
    Probe("copy rates", "copies:rates", "the machine's bus is slower than its generation; compare with others", "code"),
    Probe("store", "copies:store", "tests/engine/test_gpu.py has a test for each promise of the store"),
    Probe("store in pinned memory", "copies:pinned_store", "tests/engine/test_gpu.py has a test for each promise"),
    Probe("decode whole", "decoding:whole", _DECODER),
    Probe(
        "decode among neighbours", "decoding:neighbours", "hw_decoder_load must stay 0, or another backend is at fault"
    ),
    Probe(
        "decode EXIF orientations", "decoding:orientations", "rotated photographs are cut wrongly: do not use gpu/gpu"
    ),
    Probe("decode odd kinds", "decoding:odd_kinds", "such files must be named as bad samples, or decoded on the CPU"),
    Probe("decode odd files", "decoding:odd_files", "such files must be named as bad samples, or decoded on the CPU"),
    Probe("decode region", "decoding:region", _ISSUE_55),
    Probe("decode region, JPEG engine", "decoding:region_by_engine", _ISSUE_55),
    Probe(
        "operations",
        "operations:tables",
        "see augment/policies/operation_graph.py, and its test",
    ),
    Probe("served cpu/cpu", "serving:cpu_cpu", _SERVED, limit_s=150),
    Probe("served cpu/gpu", "serving:cpu_gpu", _SERVED, "no", 150),
    Probe("served gpu/gpu", "serving:gpu_gpu", _SERVED, "no", 150),
    Probe("hits in place", "serving:hits", "see CudaFinal in dalirefurb/engine/cuda.py: what waits", "code", 150),
    Probe(
        "capture while iterating",
        "serving:capture",
        "capture graphs before a loader is made, or with capture_error_mode='thread_local'",
        "code",
    ),
    Probe("hand-over waits", "handing_over:waits", "take batches by __dlpack__(stream=-1) after share_outputs", "code"),
    Probe("a probe that dies", "faults:die", "", limit_s=20, ends="died by SIGSEGV", dry_only=True),
    Probe("a probe that fails", "faults:fail", "", limit_s=20, ends="failed: exit status 1", dry_only=True),
    Probe("a probe that hangs", "faults:hang", "", limit_s=2, ends="hung: killed after 2 s", dry_only=True),
)
