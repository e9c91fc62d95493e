"""Hook plugins are a part of a run as components are: found, checked, recorded, and told apart by version."""

from __future__ import annotations

import json

import pytest

from gym_core import BusyError, PluginError, discovery, execute, load_recipe
from gym_core.cli import run

CODE = "from gym_core import hookimpl\nclass Extra:\n    @hookimpl\n    def load_model(self, run): pass\n"
POINTS = {"gym.hooks": {"extra": "extra:Extra"}}


@pytest.fixture
def recipe(toys, tmp_path):
    def make(**more):
        return load_recipe({"model": "words", "algorithm": "toy", "output": str(tmp_path / "out"), **more})

    return make


def test_a_hook_that_is_not_installed_is_an_error_of_the_recipe(recipe):
    with pytest.raises(PluginError, match=r"hooks\[1\]: no installed plugin brings the hook `acm`"):
        recipe(hooks=["watch", "acm"])


def test_a_hook_that_cannot_be_imported_is_an_error_of_the_recipe(recipe, toys):
    toys("gym-extra", {"extra": "raise RuntimeError('no luck')"}, POINTS)
    with pytest.raises(PluginError, match="no luck"):
        recipe(hooks=["extra"])


@pytest.mark.parametrize(
    ("code", "hooks", "why"),
    [
        (CODE.replace("load_model", "load_modle"), "[extra]", "unknown hook 'load_modle'"),
        (CODE.replace("run", "colour"), "[extra]", "'colour'"),
        (
            CODE + "    def __init__(self): raise ValueError('no luck')\n",
            "[extra]",
            "extra:Extra() raised ValueError: no luck",
        ),
        (CODE, "[extra, gym-extra/extra]", "`gym-extra/extra` is named twice"),
    ],
)
def test_a_hook_that_does_not_fit_is_told_before_a_run(toys, tmp_path, capsys, code, hooks, why):
    toys("gym-extra", {"extra": code}, POINTS)
    (tmp_path / "r.yaml").write_text(f"model: words\nalgorithm: toy\nhooks: {hooks}\n")
    assert run(["validate", str(tmp_path / "r.yaml")]) and why in capsys.readouterr().err


def test_a_hook_is_recorded_with_its_package(recipe, toys, tmp_path):
    toys("gym-extra", {"extra": CODE}, POINTS)
    execute(recipe(hooks=["extra"]))
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    (hook,) = [item for item in record["components"] if item["kind"] == "hooks"]
    assert (hook["name"], hook["dist"], hook["version"], hook["path"]) == ("extra", "gym-extra", "1.0", ["hooks", 0])
    assert record["settings"]["hooks[0]"] == "extra"


def test_another_version_of_a_hook_is_another_run(recipe, toys):
    site = toys("gym-extra", {"extra": CODE}, POINTS)
    execute(recipe(hooks=["extra"]))
    assert execute(recipe(hooks=["gym-extra/extra"])).repeated
    metadata = site / "gym_extra-1.0.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text().replace("Version: 1.0", "Version: 2.0"))
    discovery.installed.cache_clear()
    with pytest.raises(BusyError, match=r"package of hooks\[0\] 'gym-extra 1.0' -> 'gym-extra 2.0'"):
        execute(recipe(hooks=["extra"]))


WRAPPER = """
from gym_core import hookimpl
class Extra:
    @hookimpl(wrapper=True)
    def {hook}(self, {given}):
        result = yield
        return {returned}
"""


@pytest.mark.parametrize(
    ("hook", "given", "returned"),
    [
        ("load_model", "run", "None"),
        ("build_trainer", "run", "None"),
        ("build_trainer", "run", "'a trainer'"),
        ("quantize", "into", "None"),
        ("export", "into", "None"),
        ("export", "into", "into / 'elsewhere'"),
    ],
)
def test_a_wrapper_that_swallows_the_result_is_refused_by_its_name(recipe, toys, tmp_path, hook, given, returned):
    toys("gym-extra", {"extra": WRAPPER.format(hook=hook, given=given, returned=returned)}, POINTS)
    with pytest.raises(PluginError, match=rf"hooks: {hook}: gym-extra/extra returned ") as caught:
        execute(recipe(hooks=["extra"], quantization="shrink", export="shout"))
    assert len(str(caught.value).splitlines()) <= 4 and caught.value.problems[0].fix.endswith("in docs/hooks.md")


def test_a_wrapper_that_hands_the_result_on_is_none_of_it(recipe, toys):
    toys("gym-extra", {"extra": WRAPPER.format(hook="quantize", given="into", returned="result")}, POINTS)
    assert execute(recipe(hooks=["extra"], quantization="shrink")).artifact.path.is_dir()
