"""Distributions for tests: modules in a folder with the metadata that pip would have written, found as any installed one."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent
from types import MappingProxyType

import pytest

from gym_core import discovery, loading, metadata, requirements, targets

NOTHING: Mapping[str, str] = MappingProxyType({})


def write_distribution(
    site: Path,
    name: str,
    points: Mapping[str, Mapping[str, str]] | str,
    modules: Mapping[str, str] = NOTHING,
    requires: Sequence[str] = (),
    version: str = "1.0",
    urls: Mapping[str, str] = NOTHING,
    description: str = "",
) -> Path:
    """Write a distribution into a folder, which is made where it is not there.

    Args:
        site: folder that is to stand on `sys.path`.
        name: of the distribution.
        points: entry points: a target by name by group, or the text of `entry_points.txt`.
        modules: source texts by module name, indented as a whole or not.
        requires: lines of `Requires-Dist`.
        version: of the distribution.
        urls: project URLs by label.
        description: the README.

    Returns:
        The folder of the metadata.

    """
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    for module, text in modules.items():
        (site / f"{module}.py").write_text(dedent(text))
    head = ["Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}", f"Summary: About {name}"]
    head += [f"Project-URL: {label}, {url}" for label, url in urls.items()]
    head += [f"Requires-Dist: {need}" for need in requires]
    (info / "METADATA").write_text("\n".join([*head, "", description]))
    if not isinstance(points, str):
        lines = {group: [f"{key} = {value}" for key, value in names.items()] for group, names in points.items()}
        points = "\n".join("\n".join([f"[{group}]", *named, ""]) for group, named in lines.items())
    if points:
        (info / "entry_points.txt").write_text(points)
    return info


@contextmanager
def installed_in(site: Path, alone: bool = False) -> Iterator[None]:
    """Have the distributions in a folder be installed in the block, and no others with `alone`; their modules go with it."""
    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(site))
        if alone:
            patch.setattr(metadata, "search_path", lambda: [str(site)])
        forget_installed()
        try:
            yield
        finally:
            patch.undo()
            for module in set(sys.modules) - before:
                if str(site) in str(getattr(sys.modules[module], "__file__", "")):
                    del sys.modules[module]
            forget_installed()


def forget_installed() -> None:
    """Have the next look at what is installed read the metadata again, and components be imported again."""
    for cached in (
        discovery.installed,
        loading.load,
        loading.base_class,
        requirements.version_of,
        requirements.plugins,
        targets.names,
    ):
        cached.cache_clear()
