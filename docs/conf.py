"""Sphinx's settings for the site: `sphinx-build -W --keep-going -b html docs build/site`."""

import importlib.metadata

project = "dalirefurb"
author = "the dalirefurb authors"
project_copyright = f"2026, {author}"
release = version = importlib.metadata.version("dalirefurb")

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["_build"]
nitpicky = True
suppress_warnings = ["toc.empty_glob"]

html_theme = "furo"
html_title = "dalirefurb"

myst_enable_extensions = ["colon_fence", "deflist", "substitution"]
myst_heading_anchors = 3

nb_execution_mode = "cache"
nb_execution_timeout = 120
nb_execution_raise_on_error = True
nb_execution_excludepatterns: list[str] = []

autodoc_typehints = "description"
autodoc_member_order = "bysource"
napoleon_numpy_docstring = False
