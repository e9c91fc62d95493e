"""A stranger follows docs/writing-a-plugin.md to the letter: the package trains, is listed and holds to every law."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

PAGE = Path(__file__).parents[2] / "docs/writing-a-plugin.md"
FILES = re.compile(r'^(`{3,4})\w+ title="([^"]+)"\n(.*?)^\1$', re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Path:
    """Write the files of the page into a package, and return the folder."""
    folder = tmp_path_factory.mktemp("stranger") / "gym-balanced"
    for _, name, text in FILES.findall(PAGE.read_text(encoding="utf-8")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def run(package, installed):
    """Run commands that see the package."""
    return installed(package)


def test_it_takes_sixty_lines_at_most(package):
    code = [line for path in package.glob("src/**/*.py") for line in path.read_text().splitlines()]
    assert 20 < len(code) + 1 <= 60, f"{len(code)} lines and an entry point"


def test_it_appears_wherever_ours_do(run):
    listed = run("gym_core.cli", "--plugins", "list")
    assert "gym-balanced 0.1.0" in listed.stdout
    assert "From 0, every sample counts the same" in run("gym_core.cli", "plugins", "show", "balanced").stdout
    assert '"balanced"' in json.dumps(json.loads(run("gym_core.cli", "schema").stdout))


def test_it_trains_and_is_explained(run, package):
    text = (package / "README.md").read_text()
    recipe = yaml.safe_load(re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[0])
    (package / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    explained = run("gym_core.cli", "explain", "recipe.yaml")
    assert "gym-balanced 0.1.0" in explained.stdout, explained.stderr
    trained = run("gym_core.cli", "train", "recipe.yaml", "train.max_steps=4", "train.log_every=1")
    assert trained.returncode == 0, trained.stderr
    assert list((package / "runs/balanced/model").glob("*.safetensors"))


def test_it_holds_to_every_law(run):
    done = run("pytest", "--gym-dist", "gym-balanced", "-p", "no:cacheprovider", "-q", "-rp")
    assert done.returncode == 0, done.stdout
    for law in ("kill -9", "padding", "oracle", "accumulation", "same seed", "its recipes run"):
        assert re.search(rf"^PASSED gym-balanced::.*{re.escape(law)}", done.stdout, re.MULTILINE), done.stdout
