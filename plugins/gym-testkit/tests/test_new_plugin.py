"""`gym new-plugin` writes whole packages. That they hold to the laws is asked in the tests of the whole tree."""

from __future__ import annotations

import ast
import re
import tomllib

import pytest
from click.testing import CliRunner

from gym_core.errors import RecipeError
from gym_testkit.scaffold import KINDS, group_of, new_plugin, write_plugin


@pytest.mark.parametrize("kind", KINDS)
def test_package_is_whole(kind, tmp_path):
    folder = write_plugin(kind, "my-own2", tmp_path)
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert project["name"] == folder.name == "gym-my-own2"
    group = {"family": "families", "strategy": "strategies", "data": "data"}.get(kind, f"{kind}s")
    leads_to = {"command": "command", "dialect": "translate"}.get(kind, "MyOwn2")
    assert group_of(kind) == group
    assert project["entry-points"] == {f"gym.{group}": {"my-own2": f"gym_my_own2:{leads_to}"}}
    assert list(folder.glob("tests/test_*.py"))
    assert "```yaml" in (folder / "README.md").read_text()
    for path in folder.rglob("*"):
        assert "$" not in path.name
        if path.is_file():
            assert not re.search(r"\$[\w{]", path.read_text()), path
        if path.suffix == ".py":
            ast.parse(path.read_text())


def test_algorithm_takes_sixty_lines_at_most(tmp_path):
    folder = write_plugin("algorithm", "mine", tmp_path)
    lines = [line for path in folder.glob("src/**/*.py") for line in path.read_text().splitlines()]
    assert len(lines) + 1 <= 60


@pytest.mark.parametrize("name", ["Bad", "a--b", "-a", "a_b", "1a", "a/../b", ""])
def test_name_that_no_package_can_have(name, tmp_path):
    with pytest.raises(RecipeError, match="no name"):
        write_plugin("merger", name, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("null", "would not read `null`"),
        ("true", "would not read `true`"),
        ("none", "`None` would be its class"),
        ("tensor", "`Tensor` would be its class"),
        ("annotated", "`Annotated` would be its class"),
    ],
)
def test_name_whose_package_would_not_work(name, said, tmp_path):
    with pytest.raises(RecipeError, match=said):
        write_plugin("algorithm", name, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("kind", "name", "said"),
    [
        ("algorithm", "core", "gym-core is installed"),
        ("optimizer", "testkit", "gym-testkit is installed"),
        ("algorithm", "grpo", "gym-grpo is"),
        ("algorithm", "dpo", "gym-preference brings a component of that name"),
        ("optimizer", "adamw", "gym-optim brings a component of that name"),
        ("strategy", "fsdp", "gym-torch brings a component of that name"),
        ("reward", "regex", "gym-rewards brings a component of that name"),
        ("command", "train", "it is a command of gym-core"),
        ("merger", "lying", "there is a module gym_lying"),
    ],
)
def test_name_that_something_has_already(kind, name, said, tmp_path, monkeypatch):
    """Installing a package of a name that is taken would remove what has it, or hide a module, or make recipes ambiguous."""
    (tmp_path / "path").mkdir()
    (tmp_path / "path/gym_lying.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path / "path"))
    with pytest.raises(RecipeError, match=f"is taken: {said}"):
        write_plugin(kind, name, tmp_path / "into")
    assert not (tmp_path / "into").exists()


def test_existing_folder_is_left_alone(tmp_path):
    (tmp_path / "gym-mine").mkdir()
    with pytest.raises(RecipeError, match="exists already"):
        write_plugin("merger", "mine", tmp_path)
    assert not list((tmp_path / "gym-mine").iterdir())


def test_command_says_what_to_do_next(tmp_path):
    done = CliRunner().invoke(new_plugin, ["optimizer", "mine", "--into", str(tmp_path)])
    assert done.exit_code == 0
    assert "pytest --gym-dist gym-mine" in done.output
    assert CliRunner().invoke(new_plugin, ["sandwich", "mine"]).exit_code == 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_paper_stands_where_lists_of_plugins_read_it(kind, tmp_path):
    package = write_plugin(kind, "fresh", tmp_path)
    texts = [path.read_text() for path in package.rglob("*.py")] + [(package / "README.md").read_text()]
    said = any("arxiv" in text.lower() for text in texts)
    urls = tomllib.loads((package / "pyproject.toml").read_text())["project"].get("urls", {})
    assert ("fresh paper" in urls) == said and not any("paper: ClassVar" in text for text in texts)
