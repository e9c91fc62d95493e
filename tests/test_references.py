"""Every module and object that the tree names in a string, a template or a page is there: none goes stale when code moves."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path

import pytest

from gym_core import targets

ROOT = Path(__file__).parents[1]
PACKAGES = {folder.name.replace("-", "_") for folder in [ROOT / "gym-core", *(ROOT / "plugins").glob("gym-*")]}
DOTTED = re.compile(r"\b(gym_[a-z]+(?:\.[A-Za-z_]\w*)+|gym_[a-z]+(?=:[A-Za-z_]))(?::([A-Za-z_][\w.]*))?")
IMPORTED = re.compile(r"\bfrom (gym_[a-z]+(?:\.\w+)*) import (\w+(?: as \w+)?(?:, \w+(?: as \w+)?)*)")
FOLDERS = ("gym-core", "plugins", "docs", "benchmarks", "recipes")
SUFFIXES = (".py", ".pyi", ".md", ".toml", ".tmpl", ".yaml")
NO_MODULE = (".py", ".md", ".txt", ".json", ".toml", ".yaml")


def written() -> list[Path]:
    """Return the sources, templates, metadata, recipes, benchmarks and pages of the tree; decisions tell of their own time."""
    below = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    kept = [path for path in [*ROOT.glob("*"), *below] if path.suffix in SUFFIXES and path.is_file()]
    return [path for path in kept if "tests" not in path.parts and "adr" not in path.parts]


def references(text: str) -> Iterator[tuple[str, str]]:
    """Yield modules, or modules with attributes behind a dot, and what is named in them."""
    for found in DOTTED.finditer(text):
        if not found[1].endswith(NO_MODULE):
            yield found[1], found[2] or ""
    for found in IMPORTED.finditer(text):
        yield from ((found[1], part.partition(" as ")[0]) for part in found[2].split(", "))


def there(dotted: str, path: str) -> bool:
    """Whether a module, or an object of one, exists."""
    if path:
        return sets(dotted, path) or is_module(f"{dotted}.{path}")
    above, _, name = dotted.rpartition(".")
    if is_module(dotted) or (is_module(above) and sets(above, name)):
        return True
    module, _, owner = above.rpartition(".")  # an attribute of a class, which is not read
    return bool(module) and not is_module(above) and is_module(module) and sets(module, owner)


def sets(module: str, path: str) -> bool:
    """Whether a module sets a name, read from its source; a package of the tree imports its names late, and costs nothing."""
    if "." not in module:
        return path.partition(".")[0] in dir(importlib.import_module(module))
    return targets.exists(f"{module}:{path}")


def is_module(dotted: str) -> bool:
    top, *below = dotted.split(".")
    spec = find_spec(top)
    for number, _ in enumerate(below, 1):
        inside = spec and spec.submodule_search_locations
        spec = PathFinder.find_spec(".".join([top, *below[:number]]), [*inside]) if inside else None
    return spec is not None


def stale(text: str) -> list[str]:
    """Return what a text names of the tree that is not there."""
    named = {pair for pair in references(text) if pair[0].partition(".")[0] in PACKAGES}
    return sorted(f"{dotted}:{path}".rstrip(":") for dotted, path in named if not there(dotted, path))


def test_what_is_named_by_a_string_exists():
    paths = written()
    assert len(paths) > 500  # it looked
    texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}
    gone = {name: found for name, text in texts.items() if (found := stale(text))}
    assert not gone, gone


@pytest.mark.parametrize(
    "text",
    [
        'target: ClassVar[str] = "gym_rewards.builtin.length:NoSuchScore"',
        'target = "gym_rewards.no_such_module:LengthScore"',
        '[sys.executable, "-m", "gym_rewards.no_such_module"]',
        '"-c", "from gym_rewards.worker_process import no_such_thing; no_such_thing()"',
        "see `gym_rewards.reward.NoSuchClass`",
        'math = "gym_rewards:NoSuchReward"',
    ],
)
def test_what_does_not_is_found(text):
    assert stale(text)


@pytest.mark.parametrize(
    "text",
    [
        'target: ClassVar[str] = "gym_rewards.builtin.length:LengthScore"',
        "from gym_rewards import Length, RewardInput as Input, sandbox",
        "`gym_rewards.reward.RewardInput.text`, `gym_foo.score:FooScore`, plugins/gym-rewards/src/gym_rewards/reward.py",
    ],
)
def test_what_does_is_not(text):
    assert not stale(text)
