"""Where do the competitors live? In an environment of their own, `.venv` beside this script, as far as they install.

    python benchmarks/competitors/build.py      minutes, and 2 GB; needs a package index

Each is optional: what cannot be installed is named with the reason, and the suite runs with the others. FFCV is not
among them: it is built from source against OpenCV and TurboJPEG, which no package index has.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
ENVIRONMENT = HERE / ".venv"

# What is installed together, and pip's options. Torchvision without its dependencies, for it wants its own torch.
_TORCH = "torch==2.13.0"
_WANTED = {
    "torch": [_TORCH, "numpy", "pillow"],
    "torchvision": ["--no-deps", "torchvision==0.28.*"],
    "SPDL": ["spdl==0.8.*"],
    "FFmpeg's libraries, for SPDL's decoder": ["--no-deps", "av"],
    "MONAI": ["--no-deps", "monai==1.6.*"],
    "Kornia, on a GPU": ["kornia>=0.8"],
}


def main() -> int:
    """Make the environment and tell what is in it; fail only if it would be useless."""
    described = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser(description=__doc__, formatter_class=described).parse_args()
    venv.create(ENVIRONMENT, with_pip=True)
    failed = [name for name, arguments in _WANTED.items() if not _install(name, arguments)]
    _link_ffmpeg()
    done = _python(str(HERE / "worker.py"), "--list", "1")
    print(done.stdout or done.stderr)
    return 1 if "torch" in failed or done.returncode else 0


def library_path() -> str:
    """Return where SPDL finds the libraries of FFmpeg, for LD_LIBRARY_PATH."""
    return ":".join(
        str(folder) for folder in (ENVIRONMENT / "ffmpeg", *ENVIRONMENT.glob("lib/*/site-packages/av.libs"))
    )


def _install(name: str, arguments: list[str]) -> bool:
    done = _python("-m", "pip", "install", "--quiet", *arguments)
    if done.returncode:
        reason = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        print(f"left out: {name}: {reason[-1] if reason else 'pip failed'}")
    return done.returncode == 0


def _link_ffmpeg() -> None:
    """Give the libraries that PyAV's wheel brings the names that SPDL asks for."""
    links = ENVIRONMENT / "ffmpeg"
    links.mkdir(exist_ok=True)
    for library in ENVIRONMENT.glob("lib/*/site-packages/av.libs/lib*.so.*"):
        plain = re.fullmatch(r"(lib(?:av|sw)\w+)-[0-9a-f]+(\.so\.\d+).*", library.name)
        if plain:
            link = links / "".join(plain.groups())
            link.unlink(missing_ok=True)
            link.symlink_to(library)


def _python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ENVIRONMENT / "bin" / "python", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "LD_LIBRARY_PATH": library_path()},
        check=False,
    )


if __name__ == "__main__":
    sys.exit(main())
