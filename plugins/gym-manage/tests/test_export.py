"""`gym export`: a finished run once more through an exporter, with options, and nothing that passes for success."""

from __future__ import annotations

from pathlib import Path

import pytest

from gym_core import Artifact, Exporter
from gym_core.cli import run
from gym_core.errors import BUSY, FAILED, OK, USAGE
from gym_core.record import RunRecord


@pytest.fixture
def finished(add, tmp_path) -> Path:
    """Return the output of a finished run of the toy."""
    add("gym-toy")
    output = tmp_path / "run"
    (output / "model").mkdir(parents=True)
    recipe = {"model": {"backend": "toy-words", "path": "w"}, "algorithm": "toy"}
    artifact = {"path": str(output / "model"), "kind": "model"}
    RunRecord(output / "run.json").update(status="finished", recipe=recipe, trained=artifact, artifact=artifact)
    return output


def test_options_reach_the_exporter(finished):
    assert run(["export", str(finished), "--to", "toy-shout", "mark=?"]) == OK
    assert (finished / "export/toy-shout").read_text() == "model?"


def test_the_model_of_a_run_is_exported_where_the_run_is(finished):
    (finished / "model/config.json").write_text("{}")
    assert run(["export", str(finished / "model"), "--to", "toy-shout"]) == OK
    assert (finished / "export/toy-shout").read_text() == "model!"


def test_a_folder_among_the_options_is_answered_with_how_to_say_it(finished, capsys):
    assert run(["export", str(finished), "./merged", "--to", "toy-shout"]) == USAGE
    said = capsys.readouterr().err
    assert "`./merged` is not KEY=VALUE" in said and "--into FOLDER" in said


def test_a_run_that_has_not_finished_is_refused(finished, capsys):
    RunRecord(finished / "run.json").update(status="interrupted", trained=None)
    assert run(["export", str(finished), "--to", "toy-shout"]) == BUSY
    assert "status: interrupted" in capsys.readouterr().err


def test_a_run_that_is_not_there_is_answered_with_one_that_is(finished, tmp_path, capsys):
    for name, advice in (("rnu", f"did you mean `{finished}`?"), ("nothing/at/all", "name the `output` of a run")):
        assert run(["export", str(tmp_path / name), "--to", "toy-shout"]) == USAGE
        assert "is no run" in (said := capsys.readouterr().err) and advice in said


def test_a_name_of_no_folder_is_a_model_where_the_exporter_knows_names(finished, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(["export", "org/model", "--to", "toy-shout"]) == FAILED
    assert "it is not known where to write" in capsys.readouterr().err
    assert run(["export", "org/model", "--to", "toy-shout", "--into", "a/b"]) == USAGE  # it knows none
    monkeypatch.setattr(Exporter, "named", lambda self, name: Artifact(Path(name)))
    assert run(["export", "org/model", "--to", "toy-shout", "--into", "a/b"]) == OK
    assert Path("a/b").read_text() == "model!"
    assert run(["export", "rnu", "--to", "toy-shout"]) == USAGE and "did you mean `run`" in capsys.readouterr().err


def test_a_checkpoint_that_is_not_there_is_answered_with_those_that_are(finished, capsys):
    (finished / "checkpoints/step-00000005").mkdir(parents=True)
    assert run(["export", str(finished / "checkpoints/best"), "--to", "toy-shout"]) == USAGE
    said = capsys.readouterr().err
    assert "no such checkpoint" in said and "step-00000005" in said and "keep_best" in said


def test_code_that_leaves_does_not_pass_for_an_export(finished, capsys):
    assert run(["export", str(finished), "--to", "toy-shout", "mark=exit"]) == FAILED
    assert "sys.exit(0)" in capsys.readouterr().err


def test_a_folder_that_no_run_made_is_exported_where_it_is_said(add, tmp_path, capsys):
    add("gym-toy")
    folder = tmp_path / "from-elsewhere"
    folder.mkdir()
    assert run(["export", str(folder), "--to", "toy-shout", "--into", str(tmp_path / "out/it")]) == USAGE
    assert "holds no model" in capsys.readouterr().err
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "w"}')
    assert run(["export", str(folder), "--to", "toy-shout"]) == FAILED
    assert "--into" in capsys.readouterr().err
    (folder / "adapter_config.json").rename(folder / "config.json")
    assert run(["export", str(folder), "--to", "toy-shout", "--into", str(tmp_path / "out/it"), "mark=?"]) == OK
    assert (tmp_path / "out/it").read_text() == "from-elsewhere?"
    assert run(["export", str(folder), "--to", "toy-shout", "--into", str(tmp_path / "out/it"), "mrak=?"]) == USAGE
    assert "did you mean `mark`" in capsys.readouterr().err
