import ast
import functools
import graphlib
import importlib
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dalirefurb

PACKAGE = Path(dalirefurb.__file__).parent
ROOT = Path(__file__).resolve().parents[1]
# Which libraries each package may import. Python's own modules are always allowed; of dalirefurb's packages those that
# the architecture's table says.
LIBRARIES = {
    "errors": set(),
    "rng": {"numpy"},
    "checks": {"numpy"},
    "calls": set(),
    "image_batch": {"numpy"},
    "system": set(),
    "source": {"PIL", "fsspec", "nibabel", "numpy", "pyarrow", "tqdm", "xxhash", "zarr"},
    "store": {"cupy", "numpy", "xxhash", "zstandard"},
    "planning": {"numpy"},
    "augment": {"PIL", "numpy", "nvidia", "torch", "typing_extensions"},
    "dali": {"numba", "numpy", "nvidia"},
    "reading": {"PIL", "numpy", "xxhash"},
    "kernels": {"cupy", "llvmlite", "numba", "numpy", "nvidia"},
    "keep": {"PIL", "numpy", "xxhash"},
    "targets": {"PIL", "numba", "numpy", "typing_extensions", "yaml"},
    "engine": {"numpy", "torch"},
    "mix": {"numpy", "torch"},
    "dali_iterator": {"numpy", "nvidia", "torch"},
    "loader": {"numpy", "torch"},
    "partial_source": {"numpy", "nvidia"},
    "broadcast": {"numpy", "torch"},
    "trainers": {"torch"},
    "show": {"matplotlib", "numpy"},
    "doctor": {"numpy"},
    "tuning": {"matplotlib", "numpy", "torch"},
    "testing": {"hypothesis", "numpy", "nvidia", "pytest"},
    "cli": {"", "matplotlib", "tomli", "tqdm"},  # "": which names are public
    "demo": {"PIL", "numpy", "nvidia", "torch"},
}


def table():
    """Read the architecture's table: on which packages each one stands, from the top down."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    (block,) = re.findall(r"^## Packages\n\n```text\npackage [^\n]*\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    rows = [line for line in block.splitlines() if line]
    return {row[:16].strip(): {*filter(None, row[16:48].strip().split(", "))} for row in rows}


STANDS_ON = table()


@functools.cache
def below(package):
    """Return all that a package stands on, and what these stand on in turn."""
    return frozenset().union(*({each} | below(each) for each in STANDS_ON[package]))


# What is above a module, and is imported by a string: a source by itself needs no DALI until a user looks at a sample,
# a stage of DALI's operators is looked at where a user has imported these, and no command needs what trains a small
# network but the two that do.
BY_NAME = {
    ("source.contract", "reading.inspector"),
    ("augment.stages.custom", "dali"),
    ("cli.arguments", "demo.commands"),
}

# Libraries that take long to load, or are not always there, and the modules of their package that import them.
ONLY = {
    ("augment", "PIL"): {"augment.importing.torchvision_stages"},
    ("augment", "torch"): {"augment.importing.torchvision_stages"},
    ("dali", "numba"): {"dali.insides"},
    ("targets", "numba"): {"targets.instance_masks", "targets.masks"},
    ("targets", "PIL"): {"targets.mask_images"},
    ("targets", "yaml"): {"targets.folders"},
    ("kernels", "cupy"): {"kernels.cuda.program"},
    ("kernels", "nvidia"): {"kernels.pipelines"},
    ("store", "cupy"): {"store.device.memory"},
    ("store", "zstandard"): {"store.compressed"},
    ("source", "pyarrow"): {"source.hugging_face"},
    ("source", "fsspec"): {"source.shards"},
    ("source", "nibabel"): {"source.volumes"},
    ("source", "zarr"): {"source.volumes"},
    ("reading", "PIL"): {"reading.pillow_decoder"},
    ("source", "PIL"): {"source.levels"},
}


def module_name(path):
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


@functools.cache
def imported_by(module):
    path = MODULES[module]
    return frozenset(imported(path.read_text(), module, is_package=path.name == "__init__.py"))


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


OF_PACKAGES = [module for module in MODULES if module not in ("", "__main__")]


@pytest.mark.parametrize("module", OF_PACKAGES)
def test_a_module_imports_only_what_its_package_stands_on_and_its_libraries(module):
    package = module.split(".")[0]
    assert package in STANDS_ON, f"{package} has no row in the table of docs/architecture.md: which packages is it on?"
    assert package in LIBRARIES, f"dalirefurb.{package} has no row of LIBRARIES: which ones may it import?"
    names = {name.split(".")[0] for name in imported_by(module)}
    allowed = {package} | below(package) | LIBRARIES[package]
    assert names <= allowed, f"dalirefurb.{module} may import {sorted(allowed)}, but imports {sorted(names - allowed)}"
    for (of, library), only in ONLY.items():
        if of == package and library in names:
            assert module in only, f"of dalirefurb.{of} only {sorted(only)} may import {library}"


def imported_by_name(source):
    """Name the modules of the package that are imported by a string."""
    if "import_module" not in source:
        return set()
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and node.args]
    names = {ast.unparse(call.args[0]) for call in calls if ast.unparse(call.func).endswith("import_module")}
    return {name.strip("'").partition(".")[2] for name in names if name.startswith("'dalirefurb.")}


def test_what_is_imported_by_a_string_is_in_its_table():
    found = {(module, name) for module, path in MODULES.items() for name in imported_by_name(path.read_text())}
    assert found == BY_NAME
    assert imported_by_name("importlib.import_module('dalirefurb.dali').decoder()") == {"dali"}


def test_no_module_imports_itself_through_others():
    """The tables hold packages apart; this holds for modules, wherever they are."""
    arrows = {module: imported_by(module) & MODULES.keys() - {module, ""} for module in MODULES}
    try:
        graphlib.TopologicalSorter(arrows).prepare()
    except graphlib.CycleError as error:
        pytest.fail(f"a circle of imports: {' -> '.join(error.args[1])}")


def test_the_tables_have_what_is_imported_and_nothing_else():
    packages = {module.split(".")[0] for module in OF_PACKAGES}
    assert STANDS_ON.keys() == LIBRARIES.keys() == packages
    for package, stands_on in STANDS_ON.items():
        modules = [module for module in OF_PACKAGES if module.split(".")[0] == package]
        used = {name.split(".")[0] for module in modules for name in imported_by(module)} - {package}
        assert used & packages >= stands_on, f"dalirefurb.{package} does not import all of {stands_on}"
        assert used - packages == LIBRARIES[package], package
        for one in stands_on:
            others = stands_on - {one}
            assert not any(one in below(other) for other in others), f"{package} stands on {one} through {others}"


def test_each_package_of_the_table_is_above_those_that_it_stands_on():
    packages = [*STANDS_ON]
    for place, package in enumerate(packages):
        assert STANDS_ON[package] <= {*packages[place:]}


@pytest.mark.parametrize(
    ("statement", "name"),
    [
        ("import torch.nn as nn", "torch"),
        ("from nvidia.dali import fn", "nvidia"),
        ("from dalirefurb import rng", "rng"),
        ("from dalirefurb import Loader", ""),
        ("from dalirefurb.store.spec import StoreSpec", "store.spec"),
        ("from dalirefurb.store import spec", "store.spec"),
        ("import dalirefurb.dali", "dali"),
        ("from . import base", "store.base"),
        ("from .base import Store", "store.base"),
        ("from .. import dali", "dali"),
        ("def late():\n    import torch", "torch"),
        ("if TYPE_CHECKING:\n    from dalirefurb.loader import Loader", "loader"),
    ],
)
def test_imports_are_found_wherever_and_however_they_are_written(statement, name):
    assert imported(statement, "store.spec") == {name}


def test_pythons_own_modules_need_no_permission():
    assert (
        imported("from __future__ import annotations\nimport os.path\nfrom collections.abc import Set", "rng") == set()
    )


def test_planning_source_and_store_know_neither_torch_nor_dali():
    for package in ("planning", "source", "store"):
        assert not (LIBRARIES[package] | below(package)) & {"torch", "nvidia", "dali", "engine", "kernels", "loader"}


def loaded_after(statement):
    """Run a statement in a fresh interpreter; return which heavy libraries it loaded and what it printed."""
    program = f"import sys\n{statement}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True)
    *printed, modules = done.stdout.splitlines()
    return {"torch", "nvidia.dali", "cupy", "numba", "pytest", "hypothesis"} & set(modules.split()), printed


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
        f"from dalirefurb import {names}\nrand_augment(32)\nCustom(str, 'own')\n"
        f"Refurbish(8, batch_size=4, reuse_factor=2)"
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


OLD_NAMES = {
    "BatchEcho": "planning",
    "DeviceStore": "store",
    "Diagnosis": "tuning",
    "Frozen": "planning",
    "Verdict": "tuning",
    "airbench": "augment.published",
    "convnext": "augment.published",
    "deit3": "augment.published",
    "resnet_strikes_back": "augment.published",
    "simclr": "augment.published",
    "simplified": "augment.presets",
}
"""Names that were at top level, and where they live."""


@pytest.mark.parametrize("name", OLD_NAMES)
@pytest.mark.parametrize("statement", ["from dalirefurb import {0}", "import dalirefurb; {0} = dalirefurb.{0}"])
def test_an_old_name_is_what_it_was_and_warns_once_with_the_line_to_write(name, statement, monkeypatch):
    monkeypatch.delitem(vars(dalirefurb), name, raising=False)  # as in a process that did not ask for it yet
    home, script, space = f"dalirefurb.{OLD_NAMES[name]}", compile(statement.format(name), "script.py", "exec"), {}
    message = f"^dalirefurb.{name} will be gone in dalirefurb 0.2: from {home} import {name}$"
    with pytest.warns(DeprecationWarning, match=message) as told:
        exec(script, space)
    exec(script, space)  # where a warning would be an error
    assert [each.filename for each in told] == ["script.py"]
    assert space[name] is getattr(importlib.import_module(home), name)


def test_old_names_are_not_shown():
    assert not OLD_NAMES.keys() & {*dalirefurb.__all__, *dir(dalirefurb)}


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("BatchEcho", "planning.echo"),
        ("DeviceStore", "store.device.store"),
        ("Diagnosis", "engine.diagnosis"),
        ("Frozen", "planning.refurbish"),
        ("Verdict", "engine.stats"),
    ],
)
def test_pickles_find_classes_where_they_were(name, module):
    moved = getattr(importlib.import_module(f"dalirefurb.{OLD_NAMES[name]}"), name)
    assert pickle.loads(f"cdalirefurb.{module}\n{name}\n.".encode()) is moved
    assert moved.__module__ == f"dalirefurb.{module}"


def taken_from_the_top(text):
    """Find which names a text, of Python or of a page, takes from `dalirefurb` itself."""
    lists = re.findall(r"from dalirefurb import ((?:\w+(?: as \w+)?(?:, *)?)+|\([^)]*\))", text)
    names = {name for each in lists for name in re.findall(r"\w+", each)}
    return names | set(re.findall(r"(?<![\w.])dalirefurb\.(\w+)", text))


def test_no_file_of_the_project_uses_an_old_name():
    folders = ("benchmarks", "dalirefurb", "docs", "pipelines", "skills", "tests")
    files = [*ROOT.glob("*.*"), *(path for folder in folders for path in (ROOT / folder).rglob("*"))]
    texts = [path for path in files if path.suffix in {".md", ".py", ".ipynb", ".txt", ".toml"}]
    used = {str(path.relative_to(ROOT)): taken_from_the_top(path.read_text()) & OLD_NAMES.keys() for path in texts}
    assert len(used) > 500
    assert not {path: names for path, names in used.items() if names}


def test_old_names_are_found_however_they_are_written():
    for text in (
        "from dalirefurb import Loader, {0}",
        '"    from dalirefurb import {0}\\n",',
        "from dalirefurb import (\n    {0},  # once\n)",
        "`dalirefurb.{0}(8)`",
        ".. autoclass:: dalirefurb.{0}",
    ):
        assert "Frozen" in taken_from_the_top(text.format("Frozen"))
    assert "Frozen" not in taken_from_the_top("from dalirefurb.planning import Frozen; dalirefurb.planning.Frozen")


def test_an_unknown_name_is_refused_as_python_does():
    with pytest.raises(AttributeError, match="module 'dalirefurb' has no attribute 'Loaders'"):
        dalirefurb.Loaders  # noqa: B018
