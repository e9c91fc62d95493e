"""The token cache: what is damaged is made again, nothing is left lying about, and it does not grow without end."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from gym_core import DataError, GymError, RecipeError, cache_dir
from gym_data import DatasetConfig, File, cache_eviction, new_tokens, token_cache
from gym_data.byte_size import written
from gym_data.commands import data


def build(model, path, **options):
    return DatasetConfig(sources=[File(path=path)], **options).build(tokenizer=model, seed=0)


def rows(count, answer="it is {}"):
    return [{"instruction": f"say {i}", "output": answer.format(i)} for i in range(count)]


def entries():
    return sorted(path.name for path in (cache_dir() / "tokens").iterdir())


DAMAGE = {
    "manifest.json": ["", "{}", "[]", "null", '{"layout": 4}', '{"layout": 4, "sha256": {}}', "\0" * 50],
    "tokens.npy": ["", "x" * 200],
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in DAMAGE.items() for text in texts])
def test_what_is_damaged_is_made_again(name, text, model, write):
    path = write(rows(3))
    first = build(model, path)
    (cache_dir() / "tokens" / first.key / name).write_text(text)
    again = build(model, path)
    assert not again.report["cached"] and again.fingerprint == first.fingerprint
    assert build(model, path).report["cached"] and entries() == [first.key]


def test_who_makes_it_again_at_the_same_time_gets_it(model, write, monkeypatch):
    """Several runs, or processes of one, with `rebuild`: none takes away what another is about to read."""
    path = write(rows(3))
    data = DatasetConfig(sources=[File(path=path)], rebuild=True)
    first = data.build(tokenizer=model, seed=0)
    folder = cache_dir() / "tokens" / first.key
    assert data.build(tokenizer=model, seed=0, made=True).report["cached"], "the main process of the run made it"
    own, seen = token_cache.Store.add, []
    monkeypatch.setattr(token_cache.Store, "add", lambda self, *each: (seen.append(folder.is_dir()), own(self, *each)))
    again = data.build(tokenizer=model, seed=0)
    assert seen == [True] * 3 and again.fingerprint == first.fingerprint and entries() == [first.key]


@pytest.mark.parametrize("part", ["manifest.json", "ends.npy", ""])
def test_what_is_missing_is_made_again(part, model, write):
    path = write(rows(3))
    folder = cache_dir() / "tokens" / build(model, path).key
    if part:
        (folder / part).unlink()
    else:  # a file where the folder should be
        folder.rename(folder.with_name("aside"))
        folder.write_text("")
    assert not build(model, path).report["cached"]
    assert build(model, path).report["cached"]


def test_nothing_unfinished_stays_and_nothing_is_pickled(model, write):
    made = build(model, write(rows(3)))
    with pytest.raises(DataError):
        build(model, write([*rows(2), {"instruction": "x", "output": ""}], "bad.jsonl"))
    assert entries() == [made.key]
    for array in (cache_dir() / "tokens" / made.key).glob("*.npy"):
        np.load(array, allow_pickle=False)


def test_a_full_disk_names_the_file_and_leaves_nothing(model, write):
    """The system refuses to let files grow, as a full disk does."""
    path = write(rows(300, "a long answer " * 30))
    before, most = signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, most[1]))
    try:
        with pytest.raises(GymError, match="the token cache cannot be written") as caught:
            build(model, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, most)
        signal.signal(signal.SIGXFSZ, before)
    said = str(caught.value)
    assert said.startswith(str(cache_dir() / "tokens")) and "tokens.npy" in said and said.count("\n") == 2
    assert entries() == []
    assert len(build(model, path).train) == 300


ENDLESS = """
import sys, time
from pathlib import Path
from gym_data.token_cache import Store
into = Store(Path(sys.argv[1]))
into.extend(tokens=__import__("numpy").zeros(100_000))
print(into.folder.name, flush=True)
time.sleep(60)
"""


def test_what_a_killed_process_left_is_collected_and_what_another_writes_is_not(model, write, tmp_path):
    root = cache_dir() / "tokens"
    started = [
        subprocess.Popen([sys.executable, "-c", ENDLESS, str(root)], stdout=subprocess.PIPE, text=True) for _ in "ab"
    ]
    try:
        dead, living = (process.stdout.readline().strip() for process in started)
        started[0].kill()
        started[0].wait()
        build(model, write(rows(1)))
        assert {dead, living} <= set(entries()), "too young: it may be about to be locked"
        for name in (dead, living):
            os.utime(root / name, (0, 0))
        build(model, write(rows(2)))
        assert dead not in entries() and living in entries()
    finally:
        for process in started:
            process.kill()
            process.communicate()


def used(key, ago):
    moment = time.time() - ago
    os.utime(cache_dir() / "tokens" / key / token_cache.MANIFEST, (moment, moment))


def test_the_least_recently_used_goes_first(model, write, monkeypatch):
    paths = [write(rows(5, f"{name} {{}}"), name) for name in ("a.jsonl", "b.jsonl", "c.jsonl")]
    keys = [build(model, path).key for path in paths[:2]]
    for key, ago in zip(keys, (200, 100), strict=True):
        used(key, ago)
    build(model, paths[0])  # reading counts as use
    size = sum(each.size for each in cache_eviction.kept(cache_dir() / "tokens"))
    monkeypatch.setenv("GYM_CACHE_SIZE", str(int(size * 1.2)))
    last = build(model, paths[2]).key
    assert entries() == sorted([keys[0], last])
    monkeypatch.setenv("GYM_CACHE_SIZE", "1")
    assert build(model, paths[1]).report["cached"] is False
    assert entries() == [keys[1]], "what a run has just made stays, however small the bound"
    monkeypatch.setenv("GYM_CACHE_SIZE", "much")
    with pytest.raises(RecipeError, match="`much` is no size"):
        build(model, paths[0])


def test_sizes_are_read_and_written_as_people_do():
    assert [cache_eviction.size_of(text, "k") for text in ("12", "1kB", "1.5 MB", "20GB", "2t")] == [
        12,
        1000,
        1_500_000,
        20 * 10**9,
        2 * 10**12,
    ]
    assert [written(size) for size in (0, 999, 1000, 1_500_000, 2 * 10**13)] == [
        "0 bytes",
        "999 bytes",
        "1.0 kB",
        "1.5 MB",
        "20.0 TB",
    ]


def test_a_key_is_shown_in_one_piece_beside_long_names(model, write, monkeypatch):
    monkeypatch.setenv("COLUMNS", "64")
    key = build(model, write(rows(2), f"{'long' * 20}.jsonl")).key
    assert key[:12] in CliRunner().invoke(data, ["cache"], catch_exceptions=False).output


def test_the_command_shows_and_makes_room(model, write):
    keys = [build(model, write(rows(count), f"{count}.jsonl")).key for count in (2, 3)]
    used(keys[0], 100)

    def run(*arguments):
        done = CliRunner().invoke(data, ["cache", *arguments], catch_exceptions=False)
        assert done.exit_code == 0
        return done.output

    shown = json.loads(run("--json"))
    assert [each["key"] for each in shown["entries"]] == keys and shown["most_bytes"] == 50 * 10**9
    assert shown["entries"][1]["examples"] == 3 and shown["entries"][1]["sources"][0].endswith("3.jsonl")
    assert keys[0][:12] in run()
    left = shown["entries"][1]["bytes"]
    assert "removed 1 of the data sets" in run("prune", "--to", str(left))
    assert entries() == [keys[1]]
    (cache_dir() / "tokens" / keys[1] / "manifest.json").write_text("")
    assert "damaged" in run()
    assert "removed 1 of the data sets" in run("clear") and entries() == []
    assert Path(shown["path"]) == cache_dir() / "tokens"


def test_a_cache_with_room_is_looked_through_now_and_then(tmp_path, monkeypatch):
    """A thousand small datasets cost no thousand looks at all of them; one that fills up is looked through each time."""
    looks = []
    monkeypatch.setattr(cache_eviction, "kept", lambda root: looks.append(root) or [])
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "data").write_bytes(bytes(100))
    for _ in range(3):
        cache_eviction.make_room(tmp_path, 1000, "x")
    first = len(looks)
    assert first == 2, "once to take away, once to know what stays"
    for _ in range(3):
        cache_eviction.make_room(tmp_path, 500, "x")  # 100 bytes each came since
    assert len(looks) > first


def test_tokenizers_with_added_tokens_are_shown_and_go_when_unused(model, tmp_path):
    (model / "large.bin").write_bytes(bytes(10**6))  # stays a link
    made = [new_tokens.with_tokens(model, [word], ()) for word in ("<one>", "<two>")]
    assert all(folder.parent == cache_dir() / "tokenizers" for folder in made)

    def shown():
        done = CliRunner().invoke(data, ["cache", "--json"], catch_exceptions=False)
        return json.loads(done.output)["tokenizers"]

    assert shown()["entries"] == 2 and 0 < shown()["bytes"] < 10**6
    long_ago = time.time() - new_tokens.UNUSED - 1
    for folder in made:
        os.utime(folder, (long_ago, long_ago))
    assert new_tokens.with_tokens(model, ["<one>"], ()) == made[0]  # asking for it is use
    said = CliRunner().invoke(data, ["cache", "clear"], catch_exceptions=False).output
    assert "removed 1 tokenizers that none used for 30 days" in said
    assert [folder.is_dir() for folder in made] == [True, False] and (model / "large.bin").is_file()
