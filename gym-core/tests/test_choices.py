"""`gym.toml`: what is disabled, whose a name is, and that a file which cannot be followed is an error and not ignored."""

from __future__ import annotations

import os

import pytest

from gym_core import PluginError, RecipeError, discovery
from gym_core.choices import read_choices
from gym_core.loading import find

ONE = {"gym.optimizers": {"muon": "one:One"}}


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Write the user's file and the project's, from a folder below which the command is given."""
    (tmp_path / "project" / "below").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "project" / "below")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "config" / "gym").mkdir(parents=True)

    def write(user: str = "", project: str = "", name: str = "gym.toml") -> None:
        (tmp_path / "config/gym/gym.toml").write_text(user)
        (tmp_path / "project" / name).write_text(project)
        discovery.installed.cache_clear()

    return write


def test_the_project_outweighs_the_user_and_a_component_its_distribution(files):
    files(
        "[plugins]\nGym_A = false\ngym-b = false\n",
        '[plugins]\ngym-a = true\n"gym-b/muon" = true\n"gym-c/muon" = false\n',
    )
    choices = read_choices()
    assert not choices.disabled("gym-a", "muon") and choices.disabled("gym-b", "other")
    assert not choices.disabled("gym-b", "muon") and choices.disabled("gym-c", "muon")


def test_a_table_of_pyproject_serves_as_well(files):
    files(project="[project]\nname = 'x'\n\n[tool.gym.plugins]\ngym-a = false\n", name="pyproject.toml")
    assert read_choices().disabled("gym-a", "muon").endswith("pyproject.toml")


def test_a_name_is_whose_the_file_says(files, install):
    install("gym-a", {}, ONE)
    install("gym-b", {}, ONE)
    with pytest.raises(PluginError, match="gym plugins choose optimizers/muon gym-a"):
        find("optimizers", "muon")
    files(project='[plugins]\n"optimizers/muon" = "gym-b"\n')
    assert find("optimizers", "muon").dist == "gym-b"
    assert find("optimizers", "gym-a/muon").dist == "gym-a", "what is written out outweighs the file"
    files(project='[plugins]\n"optimizers/muon" = "gym-c"\n')
    with pytest.raises(PluginError, match=r"gym\.toml says that `muon` is of gym-c, which does not bring it"):
        find("optimizers", "muon")


@pytest.mark.parametrize(
    "text", ["[plugins\n", "plugins = 3\n", "[plugins]\ngym-a = 'no'\n", '[plugins]\n"optimizers/muon" = 3\n', "\x00"]
)
def test_what_cannot_be_followed_is_an_error(files, text):
    files(project=text if "=" in text or "[" in text else "[plugins]\n" + text)
    with pytest.raises(RecipeError, match=r"gym\.toml"):
        read_choices()


@pytest.mark.skipif(os.name != "posix", reason="rights as POSIX has them")
def test_bytes_that_are_no_text_are_an_error(files, tmp_path):
    files()
    (tmp_path / "config/gym/gym.toml").write_bytes(b"[plugins]\ncaf\xe9 = false\n")
    with pytest.raises(RecipeError, match="cannot be read"):
        read_choices()
