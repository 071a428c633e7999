"""Messages of the library in the words of the command line: options instead of Python's arguments."""

from __future__ import annotations

import argparse
import os
import re

_PHRASES = (
    (r"^root must", "FOLDER must"),
    (
        r"^layers must be a positive integer, at most the recipe's operations",
        "--remove-layers must be at most the number of operations",
    ),
    (r"begin with a recipe that has more", "begin with more --layers"),
    (r"cannot exceed num_samples", "cannot exceed the number of images"),
    (r", or use FileList|; FileList takes files of any name", ""),
    (r"; or pass max_bytes, and what has no room is recomputed", ""),
    (
        r"use a smaller coverage .*, a smaller reuse factor or a smaller image",
        "pass a smaller --reuse-factor or --size",
    ),
    (r"pass AutoAssist\(\.\.\., (lag=\d+)\), or a smaller look_ahead.*", r"pass \1"),
    (r"ask again (after \d+ more|in the next epoch)", "train for more --epochs"),
    (r"with those of (reuse_factor=1|Standard)\b", "with those of --technique standard"),
    (r"with those of Refurbish, reuse_factor=3", "with those of --technique refurbish"),
    (r"what else takes the cores, and ask again", "what else takes the cores, and train again"),
    (r"pass a larger max_pixels to the loader", "pass a larger --max-pixels"),
    (r"Loader.bad_samples\(\) lists them, Stats.replaced counts rows", "all are listed in the end"),
)
"""What only a program can heed, and what the command line says in its place."""

_NO_OPTIONS = ("command", "folder", "path")
"""Of the attributes of what was given. A folder or path is an option of some commands only."""

_QUOTES = "'\""
_VALUE = r"""'[^']*'|"[^"]*"|[\w.+-]*\w"""


def in_options(message: str, options: argparse.Namespace) -> str:
    """Write arguments as options are written. The options' own values, such as paths, stay as they are.

    >>> options = argparse.Namespace(reuse_factor=0, on_bad_sample="raise", lag=None, folder="a/on_bad_sample is")
    >>> in_options("reuse_factor must be an int of at least 1, got 0", options)
    '--reuse-factor must be an int of at least 1, got 0'
    >>> in_options("a/on_bad_sample is bad, pass on_bad_sample='replace', or bear the lag", options)
    'a/on_bad_sample is bad, pass --on-bad-sample replace, or bear the lag'
    >>> in_options("lag must be an int", options)
    '--lag must be an int'
    """
    names = "|".join(name for name in vars(options) if name not in _NO_OPTIONS)
    if not names:
        return message
    for phrase, other in _PHRASES:
        message = re.sub(phrase, other, message)
    given = [os.fspath(value) for value in vars(options).values() if isinstance(value, (str, os.PathLike))]
    kept = [re.escape(text) for text in sorted(given, key=len, reverse=True) if "_" in text]
    argument = rf"(?<![\w./'-])(?P<name>{names})(?:=(?P<value>{_VALUE}))?(?![\w/'.(-])"

    def written(match: re.Match[str]) -> str:
        name, value = match["name"], match["value"]
        if name is None:
            return match[0]
        # A name that is also an English word is an argument only where something is said of it, or given to it.
        said = match.start() == 0 and message.startswith(" must", match.end())
        if "_" not in name and value is None and not said:
            return match[0]
        return f"--{name.replace('_', '-')}" + ("" if value is None else f" {value.strip(_QUOTES)}")

    return re.sub("|".join([*kept, argument]), written, message)
