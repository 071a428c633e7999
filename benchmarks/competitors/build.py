"""Where do the competitors live? In an environment of their own, `.venv` beside this script, as far as they install.

    python benchmarks/competitors/build.py      minutes, and 2 GB; needs a package index, Git, GitHub and a compiler

Each is optional: what cannot be installed is named with the reason, and the suite runs with the others. Slipstream and
FFCV are compiled here, against libraries that no package index has. On Debian and Ubuntu:

    apt-get install git g++ pkg-config libturbojpeg0-dev libopencv-dev
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

# What is installed together, and pip's options. What asks for a torch of its own comes without its dependencies. A
# Slipstream that was compiled where TurboJPEG was missing lacks its decoder, so none is taken from pip's cache.
_TORCH = "torch==2.13.0"
_SLIPSTREAM = "git+https://github.com/harvard-visionlab/slipstream@f9c5883e40ab85f087a5012ad4cb5e676b9d66de"
_WANTED = {
    "torch": [_TORCH, "numpy", "pillow"],
    "torchvision": ["--no-deps", "torchvision==0.28.*"],
    "TurboJPEG, for the DataLoader of tensors and Slipstream": ["PyTurboJPEG==1.*"],
    "pycocotools, for the DataLoader of objects": ["--no-deps", "pycocotools==2.*"],
    "OpenCV, for the DataLoader of mosaics": ["opencv-python-headless"],
    "SPDL": ["spdl==0.8.*"],
    "FFmpeg's libraries, for SPDL's decoder": ["--no-deps", "av"],
    "MONAI": ["--no-deps", "monai==1.6.*"],
    "nibabel, for MONAI's volumes": ["nibabel==5.*"],
    "Kornia, on a GPU": ["kornia>=0.8"],
    "Grain": ["grain==0.2.18"],
    "what albumentations needs": ["pydantic==2.*", "PyYAML==6.*", "scipy==1.*", "simsimd==6.*", "stringzilla==3.*"],
    "albumentations": ["--no-deps", "albumentations==2.0.8", "albucore==0.0.24"],
    "LitData, and what Slipstream needs": [_TORCH, "numba==0.68.*", "litdata==0.2.76", "tqdm"],
    "Slipstream": ["--no-deps", "--no-cache-dir", f"visionlab-slipstream @ {_SLIPSTREAM}"],
    "what FFCV needs": ["assertpy", "fastargs", "numba==0.68.*", "opencv-python-headless", "psutil", "terminaltables"],
    "FFCV": ["--no-deps", "ffcv==1.0.2"],
}


def main() -> int:
    """Make the environment and tell what is in it; fail only if it would be useless."""
    described = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser(description=__doc__, formatter_class=described).parse_args()
    venv.create(ENVIRONMENT.resolve(), with_pip=True)  # where that is a link, too
    failed = [name for name, arguments in _WANTED.items() if not _install(name, arguments)]
    _link_ffmpeg()
    done = _python(str(HERE / "worker.py"), "--list", "1")
    print(done.stdout or done.stderr)
    return 1 if "torch" in failed or done.returncode else 0


def variables() -> dict[str, str]:
    """Return variables by which SPDL finds the libraries of FFmpeg, and `worker.py` the other files here."""
    folders = (ENVIRONMENT / "ffmpeg", *ENVIRONMENT.glob("lib/*/site-packages/av.libs"))
    return {"LD_LIBRARY_PATH": ":".join(map(str, folders)), "PYTHONPATH": str(HERE.parent)}


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
        env={**os.environ, **variables()},
        check=False,
    )


if __name__ == "__main__":
    sys.exit(main())
