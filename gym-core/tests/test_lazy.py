"""Public names of a package are there from the start and imported when they are first used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import gym_core


def test_a_name_is_imported_on_first_use_and_listed_before() -> None:
    probe = (
        "import sys, gym_core; assert 'Recipe' in dir(gym_core) and 'gym_core.recipe' not in sys.modules;"
        "from gym_core import Recipe; assert vars(gym_core)['Recipe'] is sys.modules['gym_core.recipe'].Recipe;"
        "from gym_core import *; assert Artifact is gym_core.Artifact"
    )
    subprocess.run([sys.executable, "-c", probe], check=True)
    assert {"Train", "hookimpl", "Trainer"} <= {*gym_core.__all__}


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'gym_core' has no attribute 'Nothing'"):
        _ = gym_core.Nothing
