"""Where a method is found: its options and its code stand in modules called as a recipe names it."""

from __future__ import annotations

import pytest

from gym_core.component import load_object
from gym_core.discovery import entries
from gym_core.loading import load

ENTRIES = {entry.name: entry for entry in entries("optimizers") if entry.dist == "gym-optim"}


@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_the_modules_of_a_method_have_its_name(name: str) -> None:
    options = load(ENTRIES[name])
    module, _, function = options.target.partition(":")
    assert options.__module__ == f"gym_optim.config.{name}"
    assert module == f"gym_optim.optimizers.{'apollo' if name == 'apollo_mini' else name}"
    assert load_object(f"{module}:{function}").__module__ == module
