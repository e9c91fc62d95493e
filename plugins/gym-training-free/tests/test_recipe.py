"""Recipes and commands: `gym train` runs it without torch, and `gym experiences` shows what it made."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

import pytest
import yaml
from scripted_server import ScriptedServer
from simulated_world import World, rows

from gym_core import GymError, execute, load_recipe
from gym_core.cli import run
from gym_training_free import ExperienceLibrary

KEY = "sk-planted/in+the-recipe"


@pytest.fixture
def world():
    """Yield a server that repeats the key of each request wherever it can."""
    plain = World()
    told = {"summary": f" You sent {KEY}.", "advantage": f"\n{KEY}"}

    def answer(request):
        return plain(request) + told.get(World.role(request), "")

    with ScriptedServer(answer, lambda request, attempt: "status 500" if attempt == 1 else "", key=KEY) as server:
        yield server


@pytest.fixture
def recipe(world, tmp_path, monkeypatch):
    monkeypatch.setenv("GYM_TEST_KEY", KEY)
    file = tmp_path / "tasks.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows(20)))
    backend = {"backend": "openai", "path": "m", "base_url": world.base_url, "api_key_env": "GYM_TEST_KEY"}
    options = {"max_epochs": 1, "batch_size": 10, "rewards": [{"name": "exact"}], "dataset": str(file)}
    return {
        "model": backend | {"backoff": 0.001, "concurrency": 8},
        "algorithm": {"name": "training_free_grpo", **options},
        "train": {"seed": 3},
        "output": str(tmp_path / "run"),
    }


def test_a_recipe_learns_writes_an_artifact_and_is_repeated_for_nothing(recipe, world, tmp_path, capsys, caplog):
    caplog.set_level(logging.DEBUG)
    outcome = execute(load_recipe(recipe))
    assert outcome.artifact.kind == "experience" and outcome.artifact.path == tmp_path / "run/experience"
    asked = len(world.requests)
    assert execute(load_recipe(recipe)).repeated and len(world.requests) == asked
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2] and lines[-1]["eval_reward"] > 0
    record = json.loads((tmp_path / "run/run.json").read_text())
    assert record["status"] == "finished" and record["artifact"]["details"]["evidence"]["evaluated"]
    everything = [path.read_text() for path in (tmp_path / "run").rglob("*") if path.is_file()]
    everything += [caplog.text, *capsys.readouterr()]
    assert "You sent [key]." in "".join(everything) and KEY not in "".join(everything)
    assert "round 2, epoch 1: reward" in everything[-1]
    assert "price of m unknown" in everything[-1] and "$0" not in "".join(everything[-3:])

    def said(*words):
        code = run(["experiences", *words])
        return code, capsys.readouterr().out

    library = ExperienceLibrary.read(tmp_path / "run")
    other = tmp_path / "other.json"
    code, text = said("show", str(tmp_path / "run"))
    assert code == 0 and all(one.text in text for one in library) and "held out" in text
    code, text = said("export", str(tmp_path / "run"))
    assert code == 0 and text.count("[E") == len(library)
    assert text.strip() == (tmp_path / "run/experience/system_prompt.txt").read_text().strip()
    assert (
        ExperienceLibrary.from_json(yaml.safe_load(said("export", str(tmp_path / "run"), "--format", "yaml")[1]))
        == library
    )
    less = ExperienceLibrary(library.experiences[1:], library.next_id)
    other.write_text(json.dumps(less.to_json()))
    code, text = said("diff", str(tmp_path / "run"), str(other))
    assert (code, text.strip()) == (0, f"- [{library.experiences[0].id}] {library.experiences[0].text}")
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump(recipe))
    code, text = said("test", str(tmp_path / "run"), str(file), "--json")
    found = json.loads(text)
    assert code == 0 and found["pairs"] == 20 and found["new"] > found["old"] and found["tokens"] > 0
    assert found["unpriced"] == ["m"]
    taught = {source.partition("/")[0] for one in library for source in one.sources}
    assert found["taught"] == len(taught) > 3  # evidence from what was learned from is none
    assert f"{len(taught)} of these questions taught it" in said("test", str(tmp_path / "run"), str(file))[1]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(20, start=900)))
    assert "taught it" not in said("test", str(tmp_path / "run"), str(file))[1]


def test_a_run_that_stopped_goes_on_with_the_same_command(recipe, world, tmp_path):
    whole = execute(load_recipe({**recipe, "output": str(tmp_path / "whole")}))
    once, world.fault = (
        world.counted["replies"],
        lambda request, attempt: "status 403" if world.counted["replies"] > stop else "",
    )
    stop = once + 40
    with pytest.raises(GymError, match="does not let this key ask"):
        execute(load_recipe(recipe))
    world.fault = lambda request, attempt: ""
    again = execute(load_recipe(recipe))
    assert again.artifact.details["fingerprint"] == whole.artifact.details["fingerprint"]
    assert world.counted["replies"] == 2 * once
    assert json.loads((tmp_path / "run/run.json").read_text())["resumed"] == 1


def test_a_run_that_met_its_cap_goes_on_with_a_higher_one(recipe, world, tmp_path):
    whole = execute(load_recipe({**recipe, "output": str(tmp_path / "whole")}))
    once, capped = (
        world.counted["replies"],
        {**recipe, "algorithm": {**recipe["algorithm"], "max_total_tokens": 10_000}},
    )
    with pytest.raises(GymError, match="raise it and run this again") as stopped:
        execute(load_recipe(capped))
    assert "algorithm.max_total_tokens" in str(stopped.value) and world.counted["replies"] > once
    assert "are spent" in ExperienceLibrary.read(tmp_path / "run").evidence["stopped"]
    again = execute(load_recipe(recipe))
    assert again.artifact.details["fingerprint"] == whole.artifact.details["fingerprint"]
    assert world.counted["replies"] == 2 * once and not again.artifact.details["evidence"]["stopped"]


def test_a_library_that_does_harm_is_an_error(recipe, tmp_path, capsys):
    from simulated_world import POISON

    from gym_training_free import Experience

    place, file = tmp_path / "poison.json", tmp_path / "recipe.yaml"
    place.write_text(json.dumps(ExperienceLibrary((Experience("E1", POISON),), 2).to_json()))
    file.write_text(yaml.safe_dump(recipe))
    assert run(["experiences", "test", str(place), str(file)]) == 1
    assert "does harm" in capsys.readouterr().err


def test_a_measurement_that_meets_its_cap_is_an_error(recipe, tmp_path, capsys):
    place, file = tmp_path / "one.json", tmp_path / "recipe.yaml"
    place.write_text(json.dumps(ExperienceLibrary().to_json()))
    recipe["algorithm"]["max_total_tokens"] = 100
    file.write_text(yaml.safe_dump(recipe))
    assert run(["experiences", "test", str(place), str(file)]) == 1
    said = capsys.readouterr().err
    assert "tokens are spent" in said and "max_total_tokens" in said and "Traceback" not in said


def test_any_source_of_gym_data_serves(recipe, world):
    pytest.importorskip("gym_data")
    path = recipe["algorithm"].pop("dataset")
    recipe["data"] = {"sources": [{"name": "file", "path": path}], "validation": 4}
    outcome = execute(load_recipe(recipe))
    assert outcome.artifact.details["evidence"]["held_out"]["questions"] == 4


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"adapter": "lora"}, "adapter"),
        ({"train": {"learning_rate": 1e-3}}, "train.learning_rate"),
        ({"model": "tiny"}, "model"),
        ({"data": "rows.jsonl"}, "data"),
        ({"algorithm": {"name": "training_free_grpo"}}, "data"),
        ({"algorithm": {"name": "training_free_grpo", "dataset": "x", "prompts": "klingon"}}, "algorithm.prompts"),
        ({"algorithm": {"name": "training_free_grpo", "dataset": "misspelt.jsonl"}}, "algorithm.dataset"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_asked(recipe, world, changes, key):
    for package in ("gym_torch", "gym_adapters", "gym_data"):
        pytest.importorskip(package)
    with pytest.raises(GymError) as refused:
        load_recipe({**recipe, **changes}).check()
    assert key in {problem.key for problem in refused.value.problems} and not world.requests


def test_a_folder_that_cannot_be_served_is_tried_once(tmp_path, monkeypatch):
    """However many ask at the same time, what the server said last is the error of them all."""
    from gym_training_free import GRPOConfig, TrainingFreeGRPO

    real, started = subprocess.Popen, []

    def fails(command, **options):
        started.append(command)
        return real([sys.executable, "-c", "import sys; sys.exit('error: there is no model')"], **options)

    monkeypatch.setattr("gym_training_free.endpoint.local_server.find", lambda kind, name: None)
    monkeypatch.setattr("gym_training_free.endpoint.local_server.subprocess.Popen", fails)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(GymError, match="error: there is no model"):
        TrainingFreeGRPO(str(tmp_path), GRPOConfig()).train(rows(20), lambda answer, row: 1.0)
    assert len(started) == 1 and started[0][2] == "gym_core.cli.exit_with_parent"


def test_it_needs_no_torch():
    probe = (
        "import sys, pkgutil, importlib, gym_training_free as package\n"
        "for module in pkgutil.walk_packages(package.__path__, 'gym_training_free.'): importlib.import_module(module.name)\n"
        "from gym_training_free import *\n"
        "print([name for name in ('torch', 'numpy', 'transformers', 'gym_data', 'openai') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_forms_of_the_seeds_work(world, monkeypatch):
    """A trainer without an address asks the server of this machine; here that is the scripted one."""
    import gym
    from zoo.gym import GRPOConfig, TrainingFreeGRPO

    assert (gym.GRPOConfig, gym.TrainingFreeGRPO) == (GRPOConfig, TrainingFreeGRPO)
    monkeypatch.setattr("gym_training_free.config.LOCAL", world.base_url)
    config = GRPOConfig(group_size=5, max_epochs=3, temperature_train=0.7)
    trainer = TrainingFreeGRPO("deepseek/v3.1-terminus", config, api_key=KEY, backoff=0.001)
    dataset = rows(200)
    experiences = trainer.train(dataset[:10], lambda answer, row: float(answer == row["answer"]))
    assert len(experiences) > 3
    assert trainer.infer(rows(5)[4]["question"], experiences).startswith("result-")


def test_a_folder_needs_gym_serve_and_says_so(tmp_path, monkeypatch):
    """Without it the package is named before anything is done; a name that is no folder means a server that runs."""
    from gym_core.errors import PluginError
    from gym_training_free import OpenAI, TrainingFreeGRPO

    def missing(kind, name):
        raise PluginError(f"no installed plugin brings the command `{name}`")

    monkeypatch.setattr("gym_training_free.endpoint.local_server.find", missing)
    with pytest.raises(GymError, match="pip install gym-serve"):
        TrainingFreeGRPO(str(tmp_path))
    with pytest.raises(GymError, match="pip install gym-serve"):
        load_recipe({"model": {"backend": "openai", "path": str(tmp_path)}, "algorithm": "training_free_grpo"}).check()
    assert OpenAI(path="some/model").address == "http://127.0.0.1:8000/v1"
    assert TrainingFreeGRPO(str(tmp_path), base_url="http://127.0.0.1:1/v1").model.server is None
