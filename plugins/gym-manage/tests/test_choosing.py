"""`gym plugins disable`, `enable`, `choose`: one line of `gym.toml`, honoured by everything, and every other line kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from gym_core.cli import run
from gym_core.discovery import entries, installed, named
from gym_core.errors import OK, PLUGIN, RecipeError
from gym_manage.choosing import write_choice

USER = Path("config/gym/gym.toml")


def names(dist: str) -> set[str]:
    return {entry.name for group in installed().entries.values() for entry in group if entry.dist == dist}


def test_disabled_is_gone_listed_and_comes_back(add, capsys):
    add("gym-toy")
    assert run(["plugins", "disable", "Gym_Toy"]) == OK
    assert USER.read_text() == '[plugins]\n"gym-toy" = false\n' and not names("gym-toy")
    assert run(["plugins", "list"]) == OK
    assert "disabled  algorithms/toy  gym-toy 1.0" in capsys.readouterr().out
    assert run(["plugins", "enable", "gym-toy/toy"]) == OK
    assert names("gym-toy") == {"toy"}, "one component of a distribution that is disabled"
    assert run(["plugins", "enable", "gym-toy"]) == OK
    assert len(names("gym-toy")) == 7


def test_a_component_that_one_alone_brings_needs_no_distribution(add):
    add("gym-toy")
    assert run(["plugins", "disable", "toy-shout", "--project"]) == OK
    assert '"gym-toy/toy-shout" = false' in Path("gym.toml").read_text()
    assert "toy-shout" not in {entry.name for entry in entries("exporters")} and "toy" in names("gym-toy")


def test_what_is_ambiguous_or_not_there_is_refused(add, capsys):
    add("gym-toy")
    add("gym-toy-two")
    assert run(["plugins", "disable", "toy-shout"]) == PLUGIN
    assert "write gym-toy-two/toy-shout or gym-toy/toy-shout" in capsys.readouterr().err
    assert run(["plugins", "disable", "gym-toyy"]) == PLUGIN
    assert "did you mean `gym-toy`?" in capsys.readouterr().err
    assert run(["plugins", "choose", "algorithms/toy", "gym-core"]) == PLUGIN
    assert "brought by gym-toy" in capsys.readouterr().err
    assert not USER.exists()


def test_enabling_against_the_project_says_what_to_do(add, capsys):
    add("gym-toy")
    assert run(["plugins", "disable", "gym-toy", "--project"]) == OK
    assert run(["plugins", "enable", "gym-toy"]) == PLUGIN
    assert "add --project" in capsys.readouterr().err
    assert run(["plugins", "enable", "gym-toy", "--project"]) == OK and names("gym-toy")


def test_a_choice_is_what_the_bare_name_means(add):
    add("gym-toy")
    add("gym-toy-two")
    assert len(named("algorithms", "toy")) == 2
    for dist in ("gym-toy-two", "gym-toy"):
        assert run(["plugins", "choose", "algorithms/toy", dist]) == OK
        assert [entry.dist for entry in named("algorithms", "toy")] == [dist]
    assert USER.read_text().count("algorithms/toy") == 1


@pytest.mark.parametrize("name", ["gym.toml", "pyproject.toml"])
def test_every_other_line_stays_as_it_is(tmp_path, name):
    header = {"gym.toml": "plugins", "pyproject.toml": "tool.gym.plugins"}[name]
    around = '# a note\n[project]\ngym-a = "not ours"\n\n', '"gym-b/x" = false\n[tool.z]\ngym-a = 1\n'
    before = f"{around[0]}[{header}]\n# why\ngym-a = true  # so\n{around[1]}"
    path = tmp_path / name
    path.write_text(before)
    write_choice(path, "gym-a", "false")
    assert path.read_text() == before.replace("# why\ngym-a = true  # so\n", "# why\n").replace(
        f"[{header}]\n", f'[{header}]\n"gym-a" = false\n'
    )
    write_choice(path, "gym-a", "")
    assert path.read_text() == before.replace("gym-a = true  # so\n", "")


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("gym.toml", "[plugins]  # mine\nGym_A = true\n", '[plugins]  # mine\n"gym-a" = false\n'),
        ("gym.toml", "[ plugins ]\n'gym.a' = true\n", '[ plugins ]\n"gym-a" = false\n'),
        ("pyproject.toml", "[tool.gym]\nplugins = {gym-a = true}\n", ""),
        ("gym.toml", "plugins.gym-a = true\n", ""),
    ],
)
def test_a_file_that_people_wrote_is_never_broken(tmp_path, name, before, after):
    path = tmp_path / name
    path.write_text(before)
    if after:
        write_choice(path, "gym-a", "false")
    else:
        with pytest.raises(RecipeError, match="its choices are not lines below a header"):
            write_choice(path, "gym-a", "false")
    assert path.read_text() == (after or before)
