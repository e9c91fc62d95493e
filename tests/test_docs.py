"""Documents are tested: generated pages are current, every hook and kind has a page and a test, every YAML and README holds."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from gym_core.discovery import entries
from gym_core.hooks import HookSpecs
from gym_core.kinds import KINDS
from gym_core.loading import base_class
from gym_core.yamlfile import parse_yaml, read_yaml

ROOT = Path(__file__).parents[1]
FILES = [path for base in ("", "gym-core/", "plugins/*/") for path in ROOT.glob(f"{base}tests/**/*.py")]
TEXTS = [path.read_text() for path in FILES]
TESTS = "\n".join(TEXTS)
MARKED = ("adapters", "optimizers")  #: kinds of which every method has tests that are marked with `proves`


def reference():
    sys.path.insert(0, str(ROOT / "docs"))
    return importlib.import_module("reference")


def test_generated_pages_are_current():
    for page, write in reference().PAGES.items():
        assert page.read_text() == write(), f"{page.name} is stale: run `nox -s reference`"


def proofs() -> dict[str, list[str]]:
    """Return the tests that are marked with `pytest.mark.proves`, by the name of the method."""
    found: dict[str, list[str]] = {}
    marked = (ast.parse(text) for text in TEXTS if "pytest.mark.proves(" in text)
    for node in (node for tree in marked for node in ast.walk(tree)):
        for mark in getattr(node, "decorator_list", []):
            if ast.unparse(mark).startswith("pytest.mark.proves("):
                for name in mark.args:
                    found.setdefault(name.value, []).append(node.name)
    return found


def test_every_method_has_tests_that_prove_it():
    pages, found = reference(), proofs()
    methods = {name for kind in MARKED for name in pages.components(kind)}
    assert methods and methods - found.keys() == set(), "no test is marked `pytest.mark.proves` with these names"
    assert found.keys() - methods == set(), "no method has these names"


def test_every_hook_has_a_section_under_its_signature():
    """That each is called is tested with a plugin that has them all: gym-core/tests/test_run.py."""
    pages = reference()
    sections = re.findall(r"^## `(.+)`$", (ROOT / "docs/hooks.md").read_text(), re.MULTILINE)
    assert sorted(sections) == sorted(pages.signature(name, function) for name, function in pages.hook_specs().items())
    assert set(pages.hook_specs()) == {"load_model", "build_trainer", "quantize", "export"} <= vars(HookSpecs).keys()


def test_what_a_kind_declares_is_described_to_the_end():
    declared = re.findall(r"^\* `\w+: ClassVar.*$", (ROOT / "docs/kinds.md").read_text(), re.MULTILINE)
    assert len(declared) > 30 and not [line for line in declared if not line.endswith(".")]


@pytest.mark.parametrize("kind", [*KINDS, *(entry.name for entry in entries("kinds"))])
def test_every_kind_is_documented_and_tested(kind):
    """A kind has laws, or a package of the tree brings one and a test writes another as a stranger would."""
    base = base_class(kind)
    assert f"## `{kind}`: `{reference().public(base)}`" in (ROOT / "docs/kinds.md").read_text()
    assert base.__doc__
    if importlib.util.find_spec(f"gym_testkit.laws.{kind}"):
        assert importlib.import_module(f"gym_testkit.laws.{kind}").laws.laws
    else:
        derived = rf"^\s*class \w+\([^)]*\b{base.__name__}\)"  # what tests write into packages is text
        assert _providers(kind) and re.search(derived, TESTS, re.MULTILINE), f"no test writes one of {kind}"


def test_the_laws_of_every_subject_are_listed():
    """The table of gym-testkit's README has a row for whatever laws are asked of."""
    listed = (ROOT / "plugins/gym-testkit/README.md").read_text()
    subjects = {
        name for row in re.findall(r"^\| ([\w, ]+) \|", listed, re.MULTILINE) for name in row.lower().split(", ")
    }
    modules = (path.stem for path in (ROOT / "plugins/gym-testkit/src/gym_testkit/laws").glob("[a-z]*.py"))
    asked = {importlib.import_module(f"gym_testkit.laws.{module}").laws.noun for module in modules}
    assert len(asked) > 20 and asked <= subjects, asked - subjects


def _providers(kind: str) -> list[str]:
    pyprojects = [*ROOT.glob("plugins/*/pyproject.toml")]
    projects = [tomllib.loads(path.read_text())["project"] for path in pyprojects]
    return [project["name"] for project in projects if project.get("entry-points", {}).get(f"gym.{kind}")]


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", *sorted(ROOT.glob("docs/tutorials/*.md"))], ids=lambda path: path.stem
)
def test_what_a_page_installs_from_a_checkout_is_whole(path):
    """What pip finds in no folder it looks for elsewhere, where packages of these names may be anybody's."""
    needs = {project["name"]: project.get("dependencies", []) for project in reference().projects()}
    for line in re.findall(r"^python -m pip install (-e .*)$", path.read_text(), re.MULTILINE):
        named = set(re.findall(r"-e (?:plugins/)?([\w-]+)", line))
        needed = {re.match(r"[\w-]+", need)[0] for name in named for need in needs[name]}
        assert not needed & needs.keys() - named


def yaml_files() -> list[Path]:
    return [p for p in ROOT.glob("**/*.y*ml") if not {".nox", ".git", "runs"} & set(p.parts)]


@pytest.mark.parametrize("path", yaml_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_yaml_in_the_tree_parses(path):
    assert read_yaml(path).data


@pytest.mark.parametrize("path", sorted(ROOT.glob("recipes/**/*.yaml")), ids=lambda path: path.stem)
def test_every_recipe_in_the_tree_validates(path):
    from gym_core import load_recipe

    assert load_recipe(path).algorithm


def documents() -> list[Path]:
    return [p for p in ROOT.glob("**/*.md") if not {".nox", ".git", "runs", "node_modules"} & set(p.parts)]


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of the headings of a page; every one is written once there."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_yaml_blocks_of_documents_parse_and_links_lead_somewhere(path):
    text = path.read_text()
    for block in re.findall(r"^```yaml\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        parse_yaml(block, path.name)
        assert yaml.safe_load(block)
    for file, heading in re.findall(r"\]\((?!https?:|mailto:)([^)#\s]*)#?([^)\s]*)[^)]*\)", text):
        page = path.parent / file if file else path
        assert page.exists(), f"{path.name} links to {file}"
        assert not heading or page.suffix != ".md" or heading in anchors(page), f"{path.name} links to {file}#{heading}"
