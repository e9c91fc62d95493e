"""A folder in place of a model: what its fingerprint covers, and options that would do nothing."""

from __future__ import annotations

import json

import pytest

from gym_core.artifact import Artifact
from gym_core.errors import GymError
from gym_training_free import GRPOConfig, OpenAI, TrainingFreeGRPO
from gym_training_free.endpoint.local_server import LocalServer

for package in ("gym_serve", "gym_data", "gym_tiny"):
    pytest.importorskip(package)


def model(folder, weights=b"1"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(weights)
    return folder


def adapter(folder, base, kind="adapter", **details):
    """Write an adapter that belongs to a base."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_model.safetensors").write_bytes(b"2")
    Artifact(folder, kind, base=str(base), details=details).record()
    return folder


def where(folder):
    return LocalServer(folder, 60).where


@pytest.mark.parametrize("kind", ["adapter", "delta"])
def test_the_base_of_an_adapter_belongs_to_what_a_folder_answers(tmp_path, kind):
    base, run = model(tmp_path / "base"), tmp_path / "run"
    first = where(adapter(run, base, kind))
    assert where(run) == first and first.startswith(f"gym-serve:{run}#")
    model(base, b"3")
    second = where(run)
    assert second != first
    model(base)
    assert where(run) == first
    adapter(run, base, kind, options={"alpha": 3})
    assert where(run) not in (first, second), "what scales an adapter decides what it answers"


def test_a_run_is_what_it_made(tmp_path):
    """Whatever else lies in its folder: checkpoints, exports, or what is learned there now."""
    base, run = model(tmp_path / "base"), tmp_path / "run"
    made = adapter(run / "adapter", base)
    told = json.loads((made / "artifact.json").read_text()) | {"path": str(made)}
    record = {"status": "finished", "trained": told, "artifact": told, "recipe": {}}
    (run / "run.json").write_text(json.dumps(record))
    first = where(run)
    model(run / "export")
    (run / "lessons.txt").write_text("When lost, wait.")
    assert where(run) == first
    model(base, b"3")
    assert where(run) != first
    (run / "run.json").write_text(json.dumps(record | {"trained": None, "status": "running"}))
    with pytest.raises(GymError, match="no finished run"):
        TrainingFreeGRPO(str(run))


def test_the_base_of_a_folder_of_peft_too(tmp_path):
    base, folder = model(tmp_path / "base"), tmp_path / "peft"
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_bytes(b"2")
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base)}))
    first = where(folder)
    model(base, b"3")
    assert where(folder) != first


def test_a_family_is_a_base(tmp_path):
    assert where(adapter(tmp_path / "one", "tiny")).split("#")[1] != where(model(tmp_path / "other")).split("#")[1]


def test_a_base_that_is_not_there_is_named_before_anything_is_asked(tmp_path):
    run = adapter(tmp_path / "run", tmp_path / "gone")
    with pytest.raises(GymError, match="there is no such folder"):
        TrainingFreeGRPO(str(run))


@pytest.mark.parametrize("text", ["{", "[]", '{"kind": "adapter"}', '{"kind": "adapter", "base": 5}'])
def test_what_cannot_be_read_is_an_error(tmp_path, text):
    run = adapter(tmp_path / "run", tmp_path / "base")
    (run / "artifact.json").write_text(text)
    with pytest.raises(GymError, match=r"artifact\.json is damaged|does not say which model"):
        where(run)


def test_a_library_that_is_learned_inside_the_folder_changes_nothing(tmp_path):
    folder = model(tmp_path / "model")
    first = where(folder)
    (folder / "lessons").mkdir()
    Artifact(folder / "lessons", "experience", base="m").record()
    (folder / "lessons" / "system_prompt.txt").write_text("When lost, wait.")
    assert where(folder) == first


def test_a_key_that_would_be_sent_nowhere_is_refused(tmp_path, monkeypatch):
    """The server of a folder has a token of its own: whoever hands over a key means another server."""
    monkeypatch.setenv("GYM_TEST_KEY", "sk-planted")
    folder = str(model(tmp_path / "model"))
    with pytest.raises(GymError, match="is a folder") as refused:
        TrainingFreeGRPO(folder, GRPOConfig(), api_key="sk-planted")
    assert "sk-planted" not in str(refused.value) and "base_url" in str(refused.value)
    for ask in (OpenAI(path=folder, api_key_env="GYM_TEST_KEY").check, OpenAI(path=folder, api_key_env="NO_KEY").build):
        with pytest.raises(GymError, match="is a folder") as refused:
            ask()
        assert "api_key_env" in str(refused.value)
    assert TrainingFreeGRPO(folder, base_url="http://127.0.0.1:1/v1", api_key="sk-planted").model.server is None
