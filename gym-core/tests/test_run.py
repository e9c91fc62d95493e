"""Runs: the four hooks in order, what is recorded, and what happens to a directory that is already in use."""

from __future__ import annotations

import json
import os

import pytest

from gym_core import Artifact, BusyError, DataError, GymError, PluginError, RecipeError, execute, load_recipe
from gym_core.errors import unexpected
from gym_core.outputlock import OutputLock


@pytest.fixture
def recipe(toys, tmp_path):
    def make(**more):
        return load_recipe({"model": "words", "algorithm": "toy", "output": str(tmp_path / "out"), **more})

    return make


def test_all_four_seams_run_and_the_record_says_so(recipe, tmp_path):
    outcome = execute(recipe(quantization="shrink", export="shout", hooks=["watch"], distributed="alone"))
    from toy_impl import Watch

    assert Watch.seen == ["load_model", "build_trainer words", "quantize", "export quantized"]
    assert (outcome.exports[0] / "words.txt").read_text() == "WORDS 1.!"
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["status"] == "finished" and record["recipe"]["algorithm"] == {"name": "toy"}
    assert {(item["kind"], item["name"], item["dist"], item["version"]) for item in record["components"]} >= {
        ("algorithms", "toy", "gym-toy", "1.0"),
        ("quantizers", "shrink", "gym-toy", "1.0"),
    }
    assert record["environment"]["packages"]["gym-toy"] == "1.0"


def test_installed_is_not_active(recipe):
    execute(recipe())
    from toy_impl import Watch

    assert Watch.seen == []


def test_finished_run_is_returned_not_repeated(recipe, tmp_path):
    execute(recipe())
    (tmp_path / "out" / "model" / "words.txt").write_text("kept")
    outcome = execute(recipe())
    assert outcome.repeated and (outcome.artifact.path / "words.txt").read_text() == "kept"


def test_failed_run_is_recorded_and_resumed(recipe, tmp_path, monkeypatch):
    made = recipe()
    import toy_impl

    monkeypatch.setattr(toy_impl.Trainer, "train", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        execute(made)
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["status"] == "failed" and "ZeroDivisionError" in record["error"]["problems"][0]["why"]
    monkeypatch.undo()
    seen = []
    monkeypatch.setattr(
        toy_impl.Trainer,
        "__init__",
        lambda self, config, run, model: seen.append(run.resuming) or setattr(self, "run", run),
    )
    monkeypatch.setattr(toy_impl.Trainer, "train", lambda self: toy_impl.Artifact(self.run.output))
    execute(made)
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert seen == [True] and record["status"] == "finished" and record["resumed"] == 1 and record["error"] is None


def test_what_a_recipe_names_must_be_there_before_anything_is_written(recipe, tmp_path, monkeypatch):
    import toy

    def missing(self):
        raise DataError("is not there", where=self.path)

    monkeypatch.setattr(toy.Rows, "check", lambda self: [source.check() for source in self.sources])
    monkeypatch.setattr(toy.Lines, "check", missing)
    with pytest.raises(DataError, match="is not there"):
        execute(recipe(data={"sources": ["a"]}))
    assert not (tmp_path / "out" / "run.json").exists(), "another recipe could not take the directory"
    monkeypatch.undo()


def test_a_finished_run_needs_nothing_any_more(recipe, tmp_path, monkeypatch):
    import toy

    execute(recipe(data={"sources": ["a"]}))
    monkeypatch.setattr(toy.Rows, "check", lambda self: pytest.fail("it is finished"))
    assert execute(recipe(data={"sources": ["a"]})).repeated


def test_another_recipe_is_refused_with_the_difference(recipe, tmp_path):
    execute(recipe())
    with pytest.raises(BusyError, match=r"algorithm.strength 1.0 -> 2.0"):
        execute(recipe(algorithm={"name": "toy", "strength": 2.0}))
    assert (tmp_path / "out" / "model" / "words.txt").read_text() == "words 1.0"


def test_overwrite_sets_aside_and_deletes_nothing(recipe, tmp_path, capsys):
    execute(recipe())
    execute(recipe(algorithm={"name": "toy", "strength": 2.0}, train={"overwrite": True}))
    assert (tmp_path / "out" / "model" / "words.txt").read_text() == "words 2.0"
    assert (tmp_path / "out.before-1" / "model" / "words.txt").read_text() == "words 1.0"
    assert f"note: set aside in {tmp_path / 'out.before-1'}: model, run.json" in capsys.readouterr().err


@pytest.mark.parametrize("output", [".", "..", "{cwd}", "link"])
def test_the_folder_that_a_command_runs_in_is_never_set_aside(recipe, tmp_path, monkeypatch, output):
    here = tmp_path / "here"
    here.mkdir()
    (here / "rows.json").write_text("precious")
    (here / "link").symlink_to(here)
    monkeypatch.chdir(here)
    with pytest.raises(BusyError, match="this command runs in") as caught:
        execute(recipe(output=output.format(cwd=here), train={"overwrite": True}))
    assert caught.value.problems[0].key == "output" and (here / "rows.json").read_text() == "precious"
    assert not list(tmp_path.rglob("*before-1"))


def test_what_lies_behind_a_link_is_set_aside_there(recipe, tmp_path):
    """A link may lead to another disk, to which nothing can be renamed."""
    (tmp_path / "disk" / "run").mkdir(parents=True)
    (tmp_path / "out").symlink_to(tmp_path / "disk" / "run")
    execute(recipe())
    execute(recipe(train={"overwrite": True}))
    assert (tmp_path / "disk" / "run.before-1" / "run.json").exists() and (tmp_path / "out").is_symlink()


def test_a_directory_of_somebody_else_is_left_alone(recipe, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("years of work")
    with pytest.raises(BusyError, match="not empty and holds no run"):
        execute(recipe())
    assert (tmp_path / "out" / "thesis.txt").read_text() == "years of work"


def test_output_in_use_is_refused(recipe, tmp_path):
    (tmp_path / "out").mkdir()
    with OutputLock(tmp_path / "out"), pytest.raises(BusyError, match=str(os.getpid())):
        execute(recipe())


@pytest.mark.parametrize(("name", "said"), [("misfit", "everywhere"), ("misspelt", "load_modle")])
def test_hooks_that_do_not_fit_stop_the_run_before_it_starts(recipe, tmp_path, name, said):
    with pytest.raises(PluginError, match=said):
        execute(recipe(hooks=[name]))
    assert not (tmp_path / "out").exists()


BROKEN = """
class Trainer:
    def __init__(self, config, run, model):
        self.model = model
    def train(self):
        return helper(self.model)
def helper(model):
    return {}[model]
"""


def test_an_error_in_the_code_of_a_plugin_names_it(toys, install, tmp_path):
    """A stranger's component fails in the middle of a run; the traceback says whose it is, and so does the message."""
    config = """
        from typing import ClassVar
        from gym_core import Algorithm
        class Fragile(Algorithm):
            "Fails in training."
            target: ClassVar[str] = "fragile_impl:Trainer"
    """
    points = {"gym.algorithms": {"fragile": "fragile:Fragile"}}
    install("gym-fragile", {"fragile": config, "fragile_impl": BROKEN}, points, version="2.1")
    with pytest.raises(KeyError) as caught:
        execute(load_recipe({"model": "words", "algorithm": "fragile", "output": str(tmp_path / "out")}))
    assert unexpected(caught.value) == "raised in gym-fragile 2.1 (gym.algorithms: fragile)"
    (problem,) = json.loads((tmp_path / "out" / "run.json").read_text())["error"]["problems"]
    assert problem["where"] == "raised in gym-fragile 2.1 (gym.algorithms: fragile)" and "KeyError" in problem["why"]


def test_of_a_module_with_several_components_in_a_run_the_package_alone_is_named(toys, install, tmp_path):
    """Which of them failed does not follow from a frame of code that they share."""
    config = """
from typing import ClassVar
from gym_core import Algorithm, Backend
class Fragile(Algorithm):
    "Fails in training."
    target: ClassVar[str] = "twice:Trainer"
class Loads(Backend):
    "Loads little."
    def build(self, run): return "words"
"""
    points = {"gym.algorithms": {"fragile": "twice:Fragile"}, "gym.backends": {"loads": "twice:Loads"}}
    install("gym-twice", {"twice": config + BROKEN}, points, version="2.1")
    recipe = {"model": {"backend": "loads"}, "algorithm": "fragile", "output": str(tmp_path / "out")}
    with pytest.raises(KeyError) as caught:
        execute(load_recipe(recipe))
    assert unexpected(caught.value) == "raised in gym-twice 2.1"


def check_blamed(install, code, tmp_path):
    """Check that the TypeError of a run with an algorithm of these modules is that of its package."""
    install("gym-fragile", code, {"gym.algorithms": {"fragile": "fragile:Fragile"}}, version="2.1")
    with pytest.raises(TypeError) as caught:
        execute(load_recipe({"model": "words", "algorithm": "fragile", "output": str(tmp_path / "out")}))
    assert unexpected(caught.value) == "raised in gym-fragile 2.1 (gym.algorithms: fragile)"


@pytest.mark.parametrize(
    "made",
    ["def Trainer(config): pass", "class Trainer(ABC):\n    @abstractmethod\n    def train(self): ..."],
    ids=["other arguments", "abstract"],
)
def test_what_cannot_be_called_as_its_kind_says_is_an_error_of_the_plugin_that_points_at_it(
    toys, install, tmp_path, made
):
    """Such an error is raised where it is called, in the code of somebody else."""
    config = """
        from typing import ClassVar
        from gym_core import Algorithm
        class Fragile(Algorithm):
            "Cannot be built."
            target: ClassVar[str] = "fragile_impl:Trainer"
    """
    code = {"fragile": config, "fragile_impl": "from abc import ABC, abstractmethod\n" + made}
    check_blamed(install, code, tmp_path)


def test_what_somebody_else_constructs_is_an_error_of_the_plugin_that_points_at_it(toys, install, tmp_path):
    """An engine makes what a component names beside its target, such as an objective."""
    config = """
        from typing import ClassVar
        from gym_core import Algorithm
        class Fragile(Algorithm):
            "Names an objective."
            target: ClassVar[str] = "engine:Trainer"
            objective: ClassVar[str] = "fragile_impl:Objective"
    """
    engine = """
        from gym_core.component import construct
        class Trainer:
            def __init__(self, config, run, model): construct(config.objective, config, model)
    """
    code = {"fragile": config, "fragile_impl": "def Objective(config): pass"}
    install("gym-engine", {"engine": engine}, {})
    check_blamed(install, code, tmp_path)


def test_two_threads_of_a_process_do_not_run_at_once(toys, install, tmp_path):
    """Seeds and chosen kernels are those of the process; what is run inside a run is a part of it."""
    code = """
        from threading import Thread
        from typing import ClassVar
        from gym_core import Algorithm, Artifact, BusyError, execute, load_recipe
        class Twice(Algorithm):
            "Runs another recipe, in another thread."
            target: ClassVar[str] = "twice:Trainer"
            other: str
        class Trainer:
            def __init__(self, config, run, model): self.config, self.run = config, run
            def train(self):
                said = []
                recipe = load_recipe({"model": "words", "algorithm": "toy", "data": "a.txt", "output": self.config.other})
                def beside():
                    try: execute(recipe)
                    except BusyError as error: said.append(str(error))
                thread = Thread(target=beside)
                thread.start()
                thread.join()
                assert said and "another thread" in said[0]
                return execute(recipe).artifact
    """
    install("gym-twice", {"twice": code}, {"gym.algorithms": {"twice": "twice:Twice"}})
    algorithm = {"name": "twice", "other": str(tmp_path / "other")}
    execute(load_recipe({"model": "words", "algorithm": algorithm, "output": str(tmp_path / "out")}))


def test_what_is_no_recipe_is_not_executed(toys):
    with pytest.raises(RecipeError, match=r"(?s)no dict.*load_recipe"):
        execute({"model": "words", "algorithm": "toy"})


@pytest.mark.parametrize("target", ["fragile_impl:Trainr", "fragile_imp:Trainer", "fragile_impl"])
def test_a_target_that_leads_nowhere_is_found_without_importing_it(install, tmp_path, target):
    config = f"""
        from typing import ClassVar
        from gym_core import Algorithm
        class Fragile(Algorithm):
            "Has a typo."
            target: ClassVar[str] = "{target}"
    """
    points = {"gym.algorithms": {"fragile": "fragile:Fragile"}}
    install("gym-fragile", {"fragile": config, "fragile_impl": "raise SystemExit\n" + BROKEN}, points)
    with pytest.raises(PluginError, match=rf"(?s)gym-fragile 1\.0.*points at `{target}`, which does not exist"):
        load_recipe({"algorithm": "fragile"})


def test_other_code_that_a_class_names_by_a_string_is_found_missing_too(install):
    """An objective with a typo would be an error of the package that imports it, in the middle of a run."""
    config = """
        from typing import ClassVar
        from gym_core import Algorithm
        class Fragile(Algorithm):
            "Has a typo."
            target: ClassVar[str] = "fragile_impl:Trainer"
            objective: ClassVar[str] = "fragile_impl:Objectiv"
    """
    install(
        "gym-fragile", {"fragile": config, "fragile_impl": BROKEN}, {"gym.algorithms": {"fragile": "fragile:Fragile"}}
    )
    with pytest.raises(
        PluginError, match=r"(?s)gym-fragile 1\.0.*points at `fragile_impl:Objectiv`.*mend its `objective`"
    ):
        load_recipe({"algorithm": "fragile"})


def test_a_run_that_left_nothing_does_not_hold_its_directory(recipe, tmp_path, monkeypatch):
    import toy_impl

    def fails(self):
        (self.run.output / "metrics.jsonl").touch()
        (self.run.output / "divergence.json").write_text("{}")  # why it ended
        (self.run.output / "checkpoints" / ".step-1.building").mkdir(parents=True)
        (self.run.output / "checkpoints" / ".step-1.building" / "half").write_text("half")
        self.run.record.update(precision="bf16")
        raise ZeroDivisionError

    monkeypatch.setattr(toy_impl.Trainer, "train", fails)
    with pytest.raises(ZeroDivisionError):
        execute(recipe())
    monkeypatch.undo()
    outcome = execute(recipe(algorithm={"name": "toy", "strength": 2.0}))
    assert (outcome.artifact.path / "words.txt").read_text() == "words 2.0"
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["resumed"] == 0 and "precision" not in record


def test_a_run_that_left_something_holds_its_directory(recipe, tmp_path, monkeypatch):
    import toy_impl

    def fails(self):
        (self.run.output / "metrics.jsonl").write_text("{}")
        raise ZeroDivisionError

    monkeypatch.setattr(toy_impl.Trainer, "train", fails)
    with pytest.raises(ZeroDivisionError):
        execute(recipe())
    with pytest.raises(BusyError, match=r"algorithm.strength 1.0 -> 2.0"):
        execute(recipe(algorithm={"name": "toy", "strength": 2.0}))


@pytest.mark.parametrize(
    ("short", "long"), [({"max_steps": 3}, {"max_steps": 5}), ({"epochs": 1.0}, {"epochs": 2.5}), ({}, {"epochs": 2.0})]
)
def test_a_run_may_be_made_longer_and_not_shorter(recipe, tmp_path, short, long):
    execute(recipe(export="shout", train=short))
    outcome = execute(recipe(export="shout", train=long))
    assert not outcome.repeated and (tmp_path / "out.before-1" / "export" / "shout").is_dir()
    assert execute(recipe(export="shout", train=long)).repeated
    with pytest.raises(BusyError, match=r"train\.(max_steps|epochs)"):
        execute(recipe(export="shout", train=short))
    with pytest.raises(BusyError, match=r"train\.seed 0 -> 1"):
        execute(recipe(export="shout", train={**long, "epochs": 99.0, "seed": 1}))


def test_what_an_exporter_cannot_carry_is_refused_by_name(recipe, monkeypatch):
    import toy_impl

    monkeypatch.setattr(
        toy_impl.Trainer, "train", lambda self: toy_impl.Artifact(self.run.output, "adapter", base="words")
    )
    with pytest.raises(GymError, match="Shout cannot write an artifact of kind `adapter`, only: model"):
        execute(recipe(export="shout"))


def test_an_artifact_is_found_where_the_run_was_moved_to(recipe, tmp_path):
    execute(recipe())
    moved = (tmp_path / "out").rename(tmp_path / "elsewhere")
    found = Artifact.from_json(json.loads((moved / "run.json").read_text())["artifact"], moved)
    assert (found.path / "words.txt").read_text() == "words 1.0"


@pytest.mark.parametrize("source", ["def Trainer(:", "\0", "print(Trainer)"])
def test_a_target_in_a_module_that_cannot_be_read_names_the_plugin(install, source):
    config = """
        from typing import ClassVar
        from gym_core import Algorithm
        class Fragile(Algorithm):
            "Has a damaged file."
            target: ClassVar[str] = "fragile_impl:Trainer"
    """
    points = {"gym.algorithms": {"fragile": "fragile:Fragile"}}
    install("gym-fragile", {"fragile": config, "fragile_impl": source}, points)
    with pytest.raises(PluginError, match=r"(?s)gym-fragile 1\.0.*points at `fragile_impl:Trainer`"):
        load_recipe({"algorithm": "fragile"})
