"""A model by name: a family, a folder or a Hub id, with an answer of four lines for everything else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from gym_core import GymError, PluginError, RecipeError, cache_dir
from gym_core.artifact import Artifact
from gym_core.record import RunRecord
from gym_data import location
from gym_data.location import artifact_at, is_hub_id, lasting, locate, specific
from gym_testkit.metadata_files import forget_installed, installed_in, write_distribution

Install = Callable[[str, Mapping[str, str], Mapping[str, str]], None]
FAMILY = {
    "small": """
        from pathlib import Path
        from typing import ClassVar
        from gym_data.kinds import Family
        class Small(Family):
            target: ClassVar[str] = "small:where"
        def where(config):
            return Path("/models/small")
        """
}


@pytest.fixture
def install(tmp_path: Path) -> Iterator[Install]:
    """Install packages with families for one test, seen alone."""
    site = tmp_path / "site"
    site.mkdir()

    def make(name: str, modules: Mapping[str, str], families: Mapping[str, str]) -> None:
        write_distribution(site, name, {"gym.families": families}, modules)
        forget_installed()

    with installed_in(site, alone=True):
        yield make


@pytest.fixture
def small(install: Install) -> Install:
    install("gym-small", FAMILY, {"small": "small:Small"})
    return install


def model(folder: Path, *files: str) -> Path:
    folder.mkdir(parents=True)
    for name in files or ("config.json", "model.safetensors"):
        (folder / name).write_text("{}")
    return folder


def refuse(name: str, **how: object) -> str:
    with pytest.raises(GymError) as caught:
        locate(name, **how)
    assert len(str(caught.value).splitlines()) <= 4
    return str(caught.value)


def test_a_family(small):
    assert locate("small") == locate("gym-small/small") == Path("/models/small")


def test_two_packages_with_one_family(small):
    small("gym-other", {"other": FAMILY["small"]}, {"small": "other:Small"})
    with pytest.raises(PluginError, match="gym-other/small"):
        locate("small")


def test_a_folder(tmp_path: Path, install, monkeypatch):
    folder = model(tmp_path / "m")
    monkeypatch.chdir(tmp_path)
    assert locate(str(folder)) == folder
    assert locate("m") == Path("m")
    assert locate("./m") == Path("./m")


def test_a_folder_called_like_a_family_is_ambiguous(tmp_path: Path, small, monkeypatch):
    model(tmp_path / "small")
    monkeypatch.chdir(tmp_path)
    assert "./small" in refuse("small")
    assert locate("./small") == Path("small")


def test_folders_that_hold_no_model(tmp_path: Path, small):
    assert "no such folder" in refuse(str(tmp_path / "none"))
    model(tmp_path / "run" / "model")
    assert f"did you mean `{tmp_path / 'run' / 'model'}`?" in refuse(str(tmp_path / "run"))
    assert "no config.json" in refuse(str(tmp_path))


def test_weights_that_an_optimizer_only_trains_are_no_model(tmp_path: Path):
    """As of schedule-free ones: the weights to use are their average, which the end of a run makes."""
    folder = model(tmp_path / "step-00000002")
    Artifact(folder, details={"averaged": False}).record()
    assert locate(str(folder)) == folder
    Artifact(folder, details={"averaged": True}).record()
    assert "the optimizer averages" in refuse(str(folder))


def test_weights_must_be_safetensors(tmp_path: Path, install):
    pickled = model(tmp_path / "pickled", "config.json", "pytorch_model.bin")
    assert "pytorch_model.bin is a pickle" in refuse(str(pickled))
    assert locate(str(pickled), weights=False) == pickled
    assert "no weights" in refuse(str(model(tmp_path / "bare", "config.json")))


@pytest.mark.parametrize("name", ["a/b/c", "a b", "https://x.org/y", "", "name\n"])
def test_names_that_can_be_nothing(small, name):
    with pytest.raises(RecipeError, match=r"cannot be a Hub id|no such folder|no config\.json"):
        locate(name)


def test_the_hub_out_of_reach_says_what_was_tried(tmp_path: Path):
    code = "from gym_core.cli import run\nfrom gym_core import GymError\nfrom gym_data.location import locate\n"
    code += "try:\n    locate('someone/small')\nexcept GymError as error:\n    print(error)"
    env = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True).stdout
    assert "no installed family and no folder" in said
    assert "Hub" in said
    assert len(said.splitlines()) <= 4


def test_without_huggingface_hub_it_says_what_to_install(small, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    said = refuse("small2")
    assert "pip install huggingface_hub" in said
    assert "did you mean the family `small`?" in said


def test_the_cache(monkeypatch, tmp_path: Path):
    monkeypatch.setenv("GYM_CACHE", str(tmp_path / "c"))
    assert cache_dir() == tmp_path / "c"
    monkeypatch.delenv("GYM_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_dir() == tmp_path / ".cache" / "gym"
    assert not cache_dir().exists()


def test_what_names_a_model_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner" / "folder").mkdir(parents=True)
    assert (
        location.is_hub_id("Qwen/Qwen3-4B")
        and not location.is_hub_id("owner/folder")
        and not location.is_hub_id("./Qwen/Qwen3-4B")
    )
    assert location.lasting("Qwen/Qwen3-4B") == "Qwen/Qwen3-4B"
    assert location.lasting("owner/folder") == location.lasting("./owner/folder") == str(tmp_path / "owner" / "folder")


def test_a_family_that_a_package_would_bring_is_named(install, tmp_path, monkeypatch):
    """Before anything is fetched: a name that a package of the catalogue brings is no Hub id by accident."""
    monkeypatch.chdir(tmp_path)
    install("gym-other", {}, {})
    assert location.package_of("tiny") == "gym-tiny" and location.package_of("org/model") == ""
    (tmp_path / "tiny").mkdir()
    assert location.package_of("tiny") == ""


def run(folder: Path, kind: str, status: str = "finished", **more: object) -> Path:
    """Write what a run leaves: a model or an adapter in `model/`, and a checkpoint that is the best one."""
    made = {"kind": kind, "base": "small" if kind == "adapter" else "", "details": {"adapter": "of:this"}}
    for name in ("model", "checkpoints/step-00000002"):
        held = model(folder / name, "adapter_config.json" if kind == "adapter" else "config.json", "a.safetensors")
    (held / "artifact.json").write_text(json.dumps(made | {"path": "."}))
    made |= {"path": str(folder / "model")}
    told = {"status": status, "trained": made, "artifact": made, "best_checkpoint": "step-00000002", "recipe": {}}
    RunRecord(folder / "run.json").update(**told, **more)
    return folder


@pytest.mark.parametrize("named", ["r", "r/model", "r/checkpoints/best", "r/checkpoints/step-00000002"])
def test_a_run_means_what_it_made_and_is_recorded_as_that(tmp_path, monkeypatch, named, small):
    monkeypatch.chdir(tmp_path)
    run(Path("r"), "model")
    held = Path("r/checkpoints/step-00000002" if "checkpoints" in named else "r/model")
    assert locate(named) == held and specific(named) == str(held)
    assert not is_hub_id(named) and lasting(named) == str(tmp_path / held)
    run(Path("r2"), "adapter")
    other = artifact_at(f"r2{named[1:]}")
    assert (other.kind, other.base, other.details) == ("adapter", "small", {"adapter": "of:this"})
    said = refuse(f"r2{named[1:]}", key="model.path")
    assert "holds an adapter of small" in said and "gym export r2" in said and "adapter_name_or_path: r2" in said


def test_a_folder_of_peft_is_no_whole_model(tmp_path):
    folder = model(tmp_path / "peft", "adapter_config.json", "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "org/base"}')
    assert artifact_at(str(folder)).base == "org/base"
    said = refuse(str(folder))
    assert "of org/base" in said and f"`gym export {folder} --into FOLDER`" in said  # no run made it
    (folder / "adapter_config.json").write_text("[]")
    assert "no configuration of an adapter" in refuse(str(folder))


def test_an_unfinished_run_is_named(tmp_path):
    folder = run(tmp_path / "r", "model", "interrupted")
    RunRecord(folder / "run.json").update(trained=None)
    assert specific(str(folder)) == str(folder)
    assert "no finished run" in refuse(str(folder))
