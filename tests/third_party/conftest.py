"""Packages of strangers: installed into a folder of their own that a subprocess sees, with all else around them."""

from __future__ import annotations

import os
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from gym_testkit import warm
from gym_testkit.caches import own_cache

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def installed() -> Callable[[Path], Command]:
    """Return a function that installs the package in a folder and returns what runs `python -m ...` with it."""

    def install(package: Path) -> Command:
        site = package.parent / f"{package.name}-site"
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "GYM_CACHE": own_cache(package.parent / "cache"),
        }

        def command(*arguments: str) -> subprocess.CompletedProcess[str]:
            return warm.run("-m", *arguments, cwd=package, env=environment, timeout=500)

        wheels = package.parent / f"{package.name}-wheel"
        done = command("hatchling", "build", "-t", "wheel", "-d", str(wheels))
        assert done.returncode == 0, done.stderr
        (wheel,) = wheels.glob("*.whl")
        with zipfile.ZipFile(wheel) as file:
            file.extractall(site)  # all that pip does with a wheel of Python alone, in a fifth of the time
        return command

    return install
