"""`run.json`: merged, and at every moment all of the old or all of the new."""

from __future__ import annotations

import getpass
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gym_core import GymError, __version__
from gym_core.record import RunRecord, environment

WRITER = """
import sys
from pathlib import Path
from gym_core.record import RunRecord
record = RunRecord(Path(sys.argv[1]))
print("ready", flush=True)
for number in range(10**9):
    record.update(number=number, text=str(number % 10) * 20000)
"""


def test_of_a_place_that_is_a_file_nothing_is_recorded(tmp_path: Path):
    (tmp_path / "file").write_text("precious")
    assert RunRecord(tmp_path / "file" / "run.json").read() == {}


def test_values_are_merged_key_by_key(tmp_path: Path):
    record = RunRecord(tmp_path / "run.json")
    assert record.read() == {}
    record.update(status="running", data={"train": {"rows": 3}, "files": [1, 2]})
    record.update(status="finished", data={"train": {"tokens": 9}, "files": [3]})
    expected = {"status": "finished", "data": {"train": {"rows": 3, "tokens": 9}, "files": [3]}}
    assert record.read() == RunRecord(tmp_path / "run.json").read() == expected
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_what_json_cannot_hold(tmp_path: Path):
    record = RunRecord(tmp_path / "run.json")
    record.update(loss=float("nan"), nested=[{"x": float("-inf")}], path=tmp_path / "é", pair=(1, 2))
    strict = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"), parse_constant=pytest.fail)
    assert strict == {"loss": None, "nested": [{"x": None}], "path": str(tmp_path / "é"), "pair": [1, 2]}
    before = (tmp_path / "run.json").read_bytes()
    with pytest.raises(TypeError):
        record.update(thing=object())
    assert (tmp_path / "run.json").read_bytes() == before


@pytest.mark.parametrize("content", ["", '{"a": 1', "[1]", "\ufeff{}"])
def test_a_damaged_record_is_named_and_kept(tmp_path: Path, content: str):
    path = tmp_path / "run.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(GymError, match="not a run record"):
        RunRecord(path).update(a=1)
    assert path.read_text(encoding="utf-8") == content


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_a_killed_writer_leaves_a_whole_record(tmp_path: Path):
    path = tmp_path / "run.json"
    for pause in (0.0, 0.01, 0.03, 0.07):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE)
        assert writer.stdout.readline() == b"ready\n"
        while not path.exists():
            time.sleep(0.001)
        time.sleep(pause)
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
        found = RunRecord(path).read()
        assert found["text"] == str(found["number"] % 10) * 20000
    RunRecord(path).update(done=True)
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_the_environment_names_versions_and_no_machine():
    found = environment()
    assert found["packages"]["gym-core"] == __version__
    assert found["python"].startswith(f"{sys.version_info.major}.")
    text = json.dumps(found)
    private = [socket.gethostname(), getpass.getuser(), str(Path.home()), sys.prefix]
    assert [word for word in private if len(word) > 3 and word in text] == []


def test_the_environment_imports_nothing_heavy():
    code = "import sys; from gym_core.record import environment; environment(); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
