"""Sphinx's settings for the site: `sphinx-build -W --keep-going -b html docs build/site`."""

from __future__ import annotations

import importlib.metadata
import inspect
import re
from typing import Any

from docutils import nodes
from sphinx.util.inspect import signature, stringify_signature

project = "dalirefurb"
author = "the dalirefurb authors"
project_copyright = f"2026, {author}"
release = version = importlib.metadata.version("dalirefurb")

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
nitpicky = True
nitpick_ignore_regex = [("py:class", ".*")]  # annotations name classes that have no page, and those of other libraries
suppress_warnings = ["toc.empty_glob"]
default_role = "code"

html_theme = "furo"
html_title = "dalirefurb"
html_static_path = ["_static"]
html_css_files = ["site.css"]

myst_heading_anchors = 3

nb_execution_mode = "cache"
nb_merge_streams = True
nb_execution_timeout = 120
nb_execution_raise_on_error = True

autodoc_mock_imports = ["accelerate", "lightning", "transformers"]
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
autodoc_use_type_comments = False
napoleon_numpy_docstring = False
napoleon_use_ivar = True

_COLON = "\N{FULLWIDTH COLON}"
_SECTION = re.compile(r"(Args|Attributes|Raises|Returns|Yields|Example|Examples|Note):$")


def as_markup(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Make markup of a docstring: what is indented there is code or a drawing, and a star is a star."""
    found, last, section = [], "", ""
    for line in lines:
        indented = line.startswith("    ") and found[-1:] != ["::"]
        if indented and found and not found[-1].strip() and last and not last[0].isspace() and not _SECTION.match(last):
            found += ["::", ""]
        if line and not line[0].isspace():
            section = line
        elif section == "Returns:":  # Napoleon takes what is before a colon there for a type, too.
            line = line.replace(":", _COLON)
        found.append(re.sub(r"(?<=, )\*(?=[\w.]+\))", r"\\*", line))
        last = line or last
    lines[:] = found
    if what == "property" and lines:  # Napoleon takes what is before a colon in its first line for its type.
        lines[0] = lines[0].replace(":", _COLON)


def with_colons(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Put colons back."""
    lines[:] = [line.replace(_COLON, ":") for line in lines]


def with_arguments(
    app: Any, what: str, name: str, obj: Any, options: Any, shown: str | None, returned: str | None
) -> tuple[str | None, str | None]:
    """Show a class's own arguments where it derives from a mock or a protocol, whose `*args` are found first."""
    if what == "class" and shown == "(*args, **kwargs)":
        own = vars(obj).get("__init__")
        if not inspect.isfunction(own) or own.__module__ != obj.__module__:
            return "", None
        shown = stringify_signature(signature(own, bound_method=True), show_annotation=False)
    if shown:
        shown = re.sub(r"<function (\w+)>", r"\1", re.sub(r"<function [\w.]*<lambda>>", "...", shown))
    return shown, returned


def without_marks(app: Any, domain: str, kind: str, content: nodes.Element) -> None:
    """Take out the marks that Sphinx leaves before the second `Literal` of a type."""
    for text in list(content.findall(nodes.Text)):
        if "~typing." in text:
            text.parent.replace(text, nodes.Text(text.replace("~typing.", "")))


def setup(app: Any) -> None:
    """Have docstrings changed before Napoleon reads them and after, and signatures and types when Sphinx has them."""
    app.connect("autodoc-process-docstring", as_markup, priority=400)
    app.connect("autodoc-process-docstring", with_colons, priority=600)
    app.connect("autodoc-process-signature", with_arguments)
    app.connect("object-description-transform", without_marks, priority=600)
