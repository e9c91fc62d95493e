"""Functions of the user in a recipe: found beside it, or refused with its line, before anything runs."""

from __future__ import annotations

import pytest

from gym_core import execute
from gym_core.errors import PluginError, RecipeError
from gym_core.recipe import load_recipe
from gym_rewards import RewardInput

RECIPE = "model: tiny\ndata: rows.jsonl\nalgorithm:\n  name: rloo\n  rewards: [{name: python, function: '%s'}]\n"


@pytest.mark.parametrize(
    ("function", "why"),
    [
        ("nowhere.py:score", "No such file"),
        ("mine.py:scores", "defines no `scores`"),
        ("broken.py:score", "is not Python"),
        ("no_such_package.at_all:score", "there is no module"),
    ],
)
def test_a_recipe_whose_function_is_not_there_is_not_valid(tmp_path, function, why):
    (tmp_path / "mine.py").write_text("def score(texts): return [1.0 for _ in texts]\n")
    (tmp_path / "broken.py").write_text("def score(:\n")
    (tmp_path / "recipe.yaml").write_text(RECIPE % function)
    with pytest.raises(RecipeError) as raised:
        load_recipe(tmp_path / "recipe.yaml")
    text = str(raised.value)
    assert why in text and "recipe.yaml:5" in text and "algorithm.rewards[0].function" in text, text


def test_a_function_stands_beside_the_recipe(tmp_path, monkeypatch):
    (tmp_path / "project").mkdir()
    (tmp_path / "project/helping.py").write_text("ONE = 1.0\n")
    (tmp_path / "project/mine.py").write_text(
        "from helping import ONE\ndef score(texts): return [ONE for _ in texts]\n"
    )
    (tmp_path / "project/recipe.yaml").write_text(RECIPE % "mine.py:score")
    monkeypatch.chdir(tmp_path)
    loaded = load_recipe("project/recipe.yaml")
    (reward,) = loaded.algorithm.rewards
    assert reward.function == "project/mine.py:score" and reward.build()([RewardInput("a")]) == [1.0]
    again = load_recipe(loaded.canonical())  # as a finished run is read again, for which nothing need be there
    assert again.fingerprint() == loaded.fingerprint()


def test_a_function_that_is_not_beside_the_recipe_stands_where_the_command_runs(tmp_path, monkeypatch):
    """As where `gym drill` writes the recipe of a run into a folder of its own."""
    for name in ("project", "elsewhere"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "recipe.yaml").write_text(RECIPE % "mine.py:score")
    (tmp_path / "project/mine.py").write_text("def score(texts): return [1.0 for _ in texts]\n")
    monkeypatch.chdir(tmp_path / "project")
    (reward,) = load_recipe("../elsewhere/recipe.yaml").algorithm.rewards
    assert reward.function == "mine.py:score"
    (tmp_path / "elsewhere/mine.py").write_text("def score(texts): return [0.0 for _ in texts]\n")
    (reward,) = load_recipe("../elsewhere/recipe.yaml").algorithm.rewards
    assert reward.function == "../elsewhere/mine.py:score"


def test_a_function_that_cannot_be_imported_is_told_before_a_model_is_loaded(tmp_path):
    """Of two errors the earlier one is told: there is no such model."""
    (tmp_path / "rows.jsonl").write_text('{"prompt": "hello"}\n' * 4)
    (tmp_path / "mine.py").write_text("def score(texts): return [1.0 for _ in texts]\nraise KeyError('no table')\n")
    (tmp_path / "recipe.yaml").write_text(RECIPE.replace("tiny", str(tmp_path / "nowhere")) % "mine.py:score")
    recipe = load_recipe(tmp_path / "recipe.yaml", [f"data={tmp_path}/rows.jsonl", f"output={tmp_path}/run"])
    with pytest.raises(PluginError, match=r"reward `python` \(gym-rewards .*cannot be loaded: KeyError: 'no table'"):
        execute(recipe)
