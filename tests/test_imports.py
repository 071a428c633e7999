import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import dalirefurb

PACKAGE = Path(dalirefurb.__file__).parent
ANYTHING = None

PLANNER = {"errors", "plan", "rng", "shuffle", "numpy"}
STAGE = {"augment", "errors", "numpy", "nvidia"}
FILES = {"errors", "numpy"}
STORE = FILES | {"images", "store"}
GRAPH = {"augment", "background", "errors", "images", "recipe", "numpy", "nvidia"}
KERNEL = {"augment.operations", "kernels", "numpy"}
RUNS = {"errors", "exchange", "feeds", "graph", "handover", "plan", "recipe", "runs", "stats", "numpy"}

# Who may import whom. A name stands for a module of the package with all in it, or for a library; Python's own
# are always allowed.
MAY_IMPORT = {
    # leaves
    "errors": set(),
    "rng": {"numpy"},
    "images": {"errors", "numpy"},
    "launcher": {"errors"},
    "control_groups": set(),
    "cores": {"control_groups"},
    "stats": {"numpy"},
    # what an epoch will do
    "plan": PLANNER,
    "shuffle": PLANNER,
    "refurbish": PLANNER,
    "echo": PLANNER | {"wrapping"},
    "smartcache": PLANNER,
    "frozen": PLANNER | {"refurbish"},
    "features": {"plan", "numpy"},
    "wrapping": PLANNER,
    "autoassist": PLANNER | {"echo", "wrapping"},
    "part": PLANNER | {"autoassist"},
    "assistant": PLANNER | {"autoassist", "features"},
    # where samples come from and where partial images wait
    "coverage": {"errors", "partial_sizes", "reader", "recipe", "refurbish", "source", "store"},
    "partial_sizes": {"reader", "recipe", "rng", "source", "numpy"},
    "quarantine": {"errors"},
    "replacements": {"errors", "plan", "quarantine", "rng", "numpy"},
    "screening": {"errors", "pillow_decoder", "plan", "quarantine", "replacements"},
    "pillow_decoder": {"errors", "numpy", "PIL"},
    "bmp": set(),
    "jpeg": set(),
    "png": set(),
    "tiff": set(),
    "structure": {"png", "tiff", "numpy"},
    "jpeg2000": {"structure", "numpy"},
    "rewriting": {"jpeg", "png", "tiff", "numpy"},
    "inspector": {
        "bmp",
        "graph",
        "jpeg",
        "jpeg2000",
        "pillow_decoder",
        "rewriting",
        "structure",
        "tiff",
        "numpy",
        "xxhash",
    },
    "source": FILES | {"source"},
    "source.arrays": FILES | {"images", "source.contract", "source.stamps"},
    "source.contract": FILES,
    "source.csv_table": {"errors"},
    "source.copies": {"numpy"},
    "source.dataset": FILES | {"source.contract", "source.copies", "tqdm"},
    "source.files": FILES | {"source.contract", "source.csv_table", "source.labels", "source.stamps"},
    "source.hugging_face": FILES
    | {"pyarrow", "source.contract", "source.files", "source.labels", "source.stamps", "xxhash"},
    "source.labels": {"errors"},
    "source.shards": FILES | {"fsspec"},
    "source.stamps": {"numpy", "xxhash"},
    "source.tar": FILES | {"source", "tqdm"},
    "source.tar_index": {"source.tar_scan"},
    "source.tar_scan": {"errors", "source.files", "xxhash"},
    "store": STORE,
    "store.arena": FILES,
    "store.available": FILES | {"control_groups", "launcher"},
    "store.budget": FILES | {"store.available"},
    "store.compressed": STORE | {"cores", "zstandard"},
    "store.contract": STORE,
    "store.batch_buffer": STORE,
    "store.device": STORE,
    "store.device_memory": STORE | {"cupy"},
    "store.device_slots": STORE,
    "store.disk": STORE,
    "store.disk_contents": STORE,
    "store.file_header": STORE | {"xxhash"},
    "store.file_lock": STORE,
    "store.gather": STORE,
    "store.ledger": FILES | {"store.names"},
    "store.moves": FILES | {"store.contract", "store.names"},
    "store.names": FILES,
    "store.opening": STORE,
    "store.placement": STORE,
    "store.records": STORE | {"xxhash"},
    "store.row_queue": FILES | {"store.names"},
    "store.versions": FILES | {"store.contract", "store.names"},
    "store.mapped": {"store.file_header", "numpy"},
    "store.read_ahead": FILES | {"store.mapped"},
    "store.slot_file": STORE | {"xxhash"},
    "store.slot_reader": STORE | {"xxhash"},
    "store.tiered": STORE | {"launcher"},
    "store.tiers": STORE,
    "store.upkeep": STORE | {"xxhash"},
    "next_uses": {"plan", "numpy"},
    "store.memory": STORE,
    "store.memory_slots": STORE,
    # what is done to an image
    "augment": {"augment"},
    "augment.stage": {"errors", "numpy", "nvidia"},
    "augment.custom": STAGE,
    "augment.geometry": STAGE,
    "augment.operation_graph": STAGE,
    "augment.operations": STAGE,
    "augment.operation_layer": STAGE,
    "augment.auto_augment": STAGE,
    "augment.rand_augment": STAGE,
    "augment.trivial_augment": STAGE,
    "diversity": {"augment.stage", "numpy"},
    "recipe": {"augment", "diversity", "errors", "rng", "numpy"},
    "presets": {"augment", "errors", "recipe"},
    "graph": GRAPH | {"graph"},
    "graph.description": GRAPH,
    "graph.replica": GRAPH | {"graph.description"},
    "graph.headers": GRAPH | {"graph.description", "graph.replica"},
    # the same without DALI
    "kernels": set(),
    "kernels.blends": KERNEL,
    "kernels.buffers": {"errors", "numpy"},
    "kernels.draws": {"kernels.compiled", "rng", "numba", "numpy"},
    "kernels.compiled": {"numba", "llvmlite", "numpy"},
    "kernels.geometry": KERNEL | {"augment.geometry"},
    "kernels.levels": KERNEL,
    "kernels.operate": KERNEL,
    "kernels.output": KERNEL | {"numba", "llvmlite"},
    "kernels.crew": {"kernels", "numba", "numpy"},
    "kernels.lanes": {"graph", "kernels", "numpy"},
    "kernels.operator": {"graph", "kernels", "numba", "numpy", "nvidia"},
    "kernels.program": {"errors", "graph", "images", "kernels", "recipe", "numpy"},
    "kernels.rooms": {"images", "kernels", "recipe", "numpy"},
    "kernels.part": {"graph", "images", "kernels", "recipe"},
    "kernels.both_parts": {"graph", "images", "kernels", "recipe", "numpy"},
    "kernels.resize": KERNEL,
    "kernels.rows": KERNEL | {"numba"},
    "kernels.scratch": {"augment.stage", "kernels", "numpy"},
    "kernels.steps": {"augment", "numpy"},
    "kernels.warp": KERNEL,
    # where they meet
    "background": set(),
    "reader": {
        "background",
        "errors",
        "graph",
        "images",
        "inspector",
        "pillow_decoder",
        "replacements",
        "source",
        "numpy",
    },
    "runs": {"errors", "plan", "numpy"},
    "coming": {"images", "plan", "store", "numpy"},
    "exchange": {"coming", "images", "next_uses", "plan", "reader", "runs", "store", "numpy"},
    "feeds": {"augment.stage", "graph", "images", "plan", "reader", "recipe", "rng", "numpy"},
    "handover": set(),
    "pace": {"autoassist", "cores", "errors", "launcher", "plan"},
    "ranks": {"errors", "launcher", "plan", "torch"},
    "on_demand": {"errors", "feeds", "graph", "images", "reader", "numpy"},
    "runners": {"augment", "errors", "graph", "images", "kernels", "pace", "recipe", "rng", "torch"},
    "making": {"augment.stage", "errors", "exchange", "feeds", "graph", "images", "kernels", "reader", "numpy"},
    "upstream": RUNS | {"making", "reader"},
    "downstream": RUNS | {"making", "store", "upstream", "torch"},
    "engine": RUNS | {"background", "downstream", "pace", "reader", "runners", "upstream"},
    "state": {"errors", "plan", "runs"},
    "assembly": RUNS
    | {*("assistant", "augment", "autoassist", "features", "on_demand", "pace", "partial_sizes", "reader", "source")}
    | {
        *(
            "downstream",
            "engine",
            "kernels",
            "making",
            "replacements",
            "runners",
            "screening",
            "smartcache",
            "store",
            "upstream",
            "wrapping",
            "torch",
        )
    },
    "assembler": {"assembly", "errors", "pace", "part", "plan", "ranks"},
    "loader": {*("assembler", "assembly", "assistant", "augment", "autoassist", "dali_iterator", "engine", "errors")}
    | {
        *(
            "pace",
            "plan",
            "quarantine",
            "ranks",
            "recipe",
            "runners",
            "runs",
            "screening",
            "source",
            "state",
            "stats",
            "store",
        )
    }
    | {"numpy", "torch"},
    "dali_iterator": {"errors", "loader", "numpy", "nvidia", "torch"},
    # programs
    "": ANYTHING,
    "__main__": ANYTHING,
    "cli": ANYTHING,
    "cli.arguments": ANYTHING,
    "cli.cache": ANYTHING,
    "cli.codec_noise": {"errors"},
    "cli.commands": ANYTHING,
    "cli.explanations": ANYTHING,
    "cli.memory": {"errors", "store.available", "store.budget"},
    "cli.numbers": set(),
    "cli.outcome": ANYTHING,
    "cli.techniques": ANYTHING,
    "cli.show": ANYTHING,
    "cli.terminal": set(),
    "cli.wording": set(),
    "compare": {"errors", "idle", "train", "matplotlib", "numpy"},
    "idle": set(),
    "demo": {"cores", "errors", "show.packages", "source", "PIL", "numpy", "tqdm"},
    "network": {"errors", "numpy", "torch"},
    "train": ANYTHING,
    # pictures
    "show": set(),
    "show.packages": {"errors"},
    "show.pictures": {"loader", "plan", "presets", "recipe", "source", "store", "numpy"},
    "show.operations": {"cores", "augment", "errors", "graph", "recipe", "show.pictures", "numpy"},
    "show.plans": {"plan", "refurbish", "shuffle", "numpy"},
    "show.canvas": {"numpy", "PIL"},
    "show.sheet": {"augment.stage", "recipe", "show.canvas", "show.operations", "show.pictures", "PIL"},
    "show.plots": {"show.canvas", "show.plans", "matplotlib", "numpy"},
    "show.files": {"errors", "plan", "recipe", "show", "source", "matplotlib", "numpy"},
}


def module_name(path):
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imported(source, module, *, is_package=False):
    """Name what a module imports, anywhere in it: modules of the package without its name, and libraries."""
    package = ["dalirefurb", *module.split(".")] if module else ["dalirefurb"]
    package = package if is_package else package[:-1]
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*above, *([node.module] if node.module else [])])
            names |= {origin if _is_no_module(origin, alias.name) else f"{origin}.{alias.name}" for alias in node.names}
    ours = {name.partition(".")[2] for name in names if name.split(".")[0] == "dalirefurb"}
    others = {name.split(".")[0] for name in names} - {"dalirefurb"} - sys.stdlib_module_names
    return ours | others


def _is_no_module(origin, name):
    """Whether `from origin import name` takes a name out of a module rather than a module of the package."""
    folder = PACKAGE.joinpath(*origin.split(".")[1:])
    return not (origin.split(".")[0] == "dalirefurb" and any((folder / end).exists() for end in (name, f"{name}.py")))


def allows(allowed, name):
    return any(name == entry or name.startswith(f"{entry}.") for entry in allowed)


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_what_the_table_allows(module):
    assert module in MAY_IMPORT, (
        f"dalirefurb.{module} is not in the table: add to MAY_IMPORT which modules and libraries it may import, "
        f"in the directions that the other rows show"
    )
    allowed = MAY_IMPORT[module]
    path = MODULES[module]
    names = imported(path.read_text(), module, is_package=path.name == "__init__.py")
    if allowed is not ANYTHING:
        forbidden = sorted(name for name in names if not allows(allowed, name))
        assert not forbidden, f"dalirefurb.{module} may import {sorted(allowed)}, but imports {forbidden}"


@pytest.mark.parametrize(
    ("statement", "name"),
    [
        ("import torch.nn as nn", "torch"),
        ("from nvidia.dali import fn", "nvidia"),
        ("from dalirefurb import rng", "rng"),
        ("from dalirefurb import Loader", ""),
        ("from dalirefurb.store.memory import MemoryStore", "store.memory"),
        ("from dalirefurb.store import memory", "store.memory"),
        ("import dalirefurb.graph", "graph"),
        ("from . import contract", "store.contract"),
        ("from .contract import Store", "store.contract"),
        ("from .. import graph", "graph"),
        ("def late():\n    import torch", "torch"),
        ("if TYPE_CHECKING:\n    from dalirefurb.loader import Loader", "loader"),
    ],
)
def test_imports_are_found_wherever_and_however_they_are_written(statement, name):
    assert imported(statement, "store.memory") == {name}


def test_pythons_own_modules_need_no_permission():
    assert (
        imported("from __future__ import annotations\nimport os.path\nfrom collections.abc import Set", "rng") == set()
    )


def test_the_table_keeps_the_layers_apart():
    """The table may grow, but not into a circle between these."""
    upper = {
        "assembler",
        "assembly",
        "ranks",
        "runners",
        "upstream",
        "downstream",
        "engine",
        "handover",
        "loader",
        "dali_iterator",
        "torch",
    }
    upper |= {"cli", "compare", "demo", "network", "show", "train"}
    for module, allowed in MAY_IMPORT.items():
        if allowed is not ANYTHING and module.split(".")[0] not in upper:
            assert not allowed & upper, module
        if allowed is not ANYTHING and "nvidia" in allowed:
            assert module.split(".")[0] in {"augment", "graph", "dali_iterator"} or module == "kernels.operator"
            assert not allowed & {"plan", "shuffle", "refurbish", "store"}


def loaded_after(statement):
    """Run a statement in a fresh interpreter; return which heavy libraries it loaded and what it printed."""
    program = f"import sys\n{statement}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True)
    *printed, modules = done.stdout.splitlines()
    return {"torch", "nvidia.dali", "cupy", "numba"} & set(modules.split()), printed


def test_importing_the_package_loads_neither_torch_nor_dali_and_lists_the_public_names():
    heavy, printed = loaded_after("import dalirefurb\nprint(*dir(dalirefurb))")
    assert heavy == set()
    assert printed == [" ".join(dalirefurb.__all__)]
    assert {"Arrays", "ImageFolder", "Loader", "MemoryStore", "Recipe", "Refurbish", "Standard"} <= {
        *dalirefurb.__all__
    }


def test_planning_storing_reading_and_describing_load_neither_torch_nor_dali():
    names = "Arrays, Custom, FileList, ImageFolder, MemoryStore, Output, Recipe, Refurbish, Standard, rand_augment"
    heavy, _ = loaded_after(
        f"from dalirefurb import {names}\nrand_augment(32)\nRefurbish(8, batch_size=4, reuse_factor=2)"
    )
    assert heavy == set()


@pytest.mark.parametrize("name", dalirefurb.__all__)
def test_a_public_name_is_there_and_is_called_so(name):
    assert getattr(dalirefurb, name).__name__ == name


def test_type_checkers_see_the_public_names():
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.asname: f"{node.module}" for node in block.body for alias in node.names}
    assert sorted(seen) == dalirefurb.__all__
    for name, home in seen.items():
        assert getattr(importlib.import_module(home), name) is getattr(dalirefurb, name)


def test_an_unknown_name_is_refused_as_python_does():
    with pytest.raises(AttributeError, match="module 'dalirefurb' has no attribute 'Loaders'"):
        dalirefurb.Loaders  # noqa: B018
