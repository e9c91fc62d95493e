"""An option of a component that a recipe does not select: the error says whose it is."""

from __future__ import annotations

import pytest

from gym_core import GymError, load_recipe
from gym_manage import advice


def test_the_error_says_whose_an_option_is(add):
    add("gym-toy")
    advice.told.cache_clear()
    assert advice.advise("strength") == ("belongs to algorithm `toy` (gym-toy)", "set `algorithm: toy`")
    assert advice.advise("mark") == ("belongs to exporter `toy-shout` (gym-toy)", "set `export: toy-shout`")
    assert advice.advise("nobodys") is None
    with pytest.raises(GymError, match=r"strength: belongs to algorithm `toy` \(gym-toy\)"):
        load_recipe({"model": {"backend": "toy-words", "path": "w"}, "strength": 2})
