"""An option of a component that a recipe does not select: the error says whose it is."""

from __future__ import annotations

import pytest

from gym_core import GymError, load_recipe
from gym_manage import advice
from gym_testkit.metadata_files import forget_installed, write_distribution


def test_the_error_says_whose_an_option_is(add):
    add("gym-toy")
    advice.told.cache_clear()
    assert advice.advise("strength") == ("belongs to `algorithm: toy` (gym-toy)", "set `algorithm: toy`")
    assert advice.advise("mark") == ("belongs to `export: toy-shout` (gym-toy)", "set `export: toy-shout`")
    assert advice.advise("nobodys") is None
    assert advice.advise("lr_scheduler_type") == ("unknown key", "did you mean `scheduler`?")  # as TRL calls a section
    with pytest.raises(GymError, match=r"strength: belongs to `algorithm: toy` \(gym-toy\)"):
        load_recipe({"model": {"backend": "toy-words", "path": "w"}, "strength": 2})


def test_it_names_all_components_that_have_an_option(add, tmp_path):
    """Whoever follows the error must not come to another method than the one that is meant."""
    add("gym-toy")
    code = "from gym_toy import Toy, Shout\nclass Sharper(Toy): ...\nclass Softer(Shout):\n    strength: int = 1\n"
    groups = {"gym.algorithms": {"sharper": "more:Sharper"}, "gym.exporters": {"softer": "more:Softer"}}
    write_distribution(tmp_path / "site", "gym-more", groups, {"more": code})
    forget_installed()
    advice.told.cache_clear()
    fix = "name the one that you mean, which this recipe does not"
    assert advice.advise("strength") == ("belongs to `algorithm` sharper, toy; `export` softer", fix)
