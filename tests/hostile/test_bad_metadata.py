"""Distributions whose metadata lie, clash or cannot be read."""

from __future__ import annotations

import json
import time

import pytest

PLUGIN = 3

GARBLED = (
    "[gym.algorithms\nx = y:z\n[gym.algorithms]\nno equals sign\n = nothing:here\nfine = gym_garbled:Toy\nbad = 1 2 3\n"
)
UNREADABLE = {
    "latin": {"entry_points": b"[gym.algorithms]\ncaf\xe9 = gym_latin:Toy\n"},
    "binary": {"entry_points": bytes(range(256)) * 4},
    "nometa": {"metadata": ""},
    "badmeta": {"metadata": b"Name: gym-badmeta\nVersion: 1.0\nSummary: caf\xe9\n\n"},
}


@pytest.mark.parametrize("fault", UNREADABLE)
def test_unreadable_metadata_are_named_and_hurt_nobody(site, toy, fault):
    site.add(f"gym-{fault}", toy, **UNREADABLE[fault])
    shown, listed, done = site.gym("--help"), site.gym("--plugins", "list"), site.gym("train", site.recipe("toy"))
    assert shown.returncode == listed.returncode == done.returncode == 0, shown.stderr + listed.stderr + done.stderr
    assert f"gym_{fault}" in listed.stderr, listed.stderr
    checked = site.gym("plugins", "check")
    assert checked.returncode == PLUGIN
    assert f"gym_{fault}" in checked.stdout and "metadata" in checked.stdout, checked.stdout


def test_garbled_lines_are_named_and_the_others_kept(site, toy):
    site.add("gym-garbled", toy, entry_points=GARBLED)
    listed = site.gym("--plugins", "list")
    assert listed.returncode == 0
    assert "fine" in listed.stdout and " bad " not in listed.stdout
    for number in (4, 5, 7):
        assert f"line {number} of entry_points.txt" in listed.stderr, listed.stderr
    assert site.gym("train", site.recipe("fine")).returncode == 0
    assert site.gym("plugins", "check").returncode == PLUGIN


def test_requirement_that_cannot_be_parsed_hurts_nobody(site, toy):
    site.add("gym-requirement", toy, requires=("gym-core >= <= !!",))
    assert site.gym("train", site.recipe("toy")).returncode == 0


def test_things_that_only_look_like_metadata(site):
    (site.root / "file-1.0.dist-info").write_text("no directory")
    (site.root / ".dist-info").mkdir()
    (site.root / "empty-1.0.dist-info").mkdir()
    (site.root / "folder-1.0.dist-info" / "entry_points.txt").mkdir(parents=True)
    (site.root / "dangling-1.0.dist-info").symlink_to(site.root / "nowhere")
    assert site.gym("--help").returncode == 0
    assert site.gym("--plugins", "list").returncode == 0
    assert site.gym("validate", site.recipe("toy")).returncode == 0


def test_same_name_twice_names_both_and_either_can_be_chosen(site, toy):
    for owner in ("gym-one", "gym-two"):
        site.add(owner, toy, name="same")
    done = site.gym("train", site.recipe("same"))
    assert done.returncode == PLUGIN
    assert len(done.stderr.strip().splitlines()) <= 4
    assert "gym-one 1.0" in done.stderr and "gym-two 1.0" in done.stderr
    assert "`gym-one/same`" in done.stderr and "`gym-two/same`" in done.stderr
    assert "ambiguous" in site.gym("--plugins", "list").stdout
    for chosen in ("gym-one/same", "gym-two/same"):
        assert site.gym("train", site.recipe(chosen)).returncode == 0
    checked = site.gym("plugins", "check")
    assert checked.returncode == PLUGIN
    assert "gym-one/same" in checked.stdout


def test_same_command_twice_does_not_hide_the_others(site):
    code = "import click\n@click.command()\ndef hello():\n    click.echo('hello')\n"
    for owner in ("gym-one", "gym-two"):
        module = owner.replace("-", "_")
        site.add(
            owner, code, entry_points=f"[gym.commands]\nhello = {module}:hello\nown-{module[4:]} = {module}:hello\n"
        )
    assert site.gym("--help").returncode == 0
    assert site.gym("own-one").stdout == "hello\n"
    assert site.gym("hello").returncode == PLUGIN


def test_plugin_cannot_take_a_command_of_the_kernel(site):
    site.add("gym-thief", "raise SystemExit('stolen')", entry_points="[gym.commands]\ntrain = gym_thief:train\n")
    done = site.gym("train", site.recipe("toy"))
    assert done.returncode == 0 and "stolen" not in done.stdout + done.stderr


def test_very_many_entry_points_cost_little(site, toy):
    lines = "".join(f"flood-{number} = gym_flood:Toy\n" for number in range(20_000))
    site.add("gym-flood", toy, entry_points=f"[gym.algorithms]\n{lines}[other.group]\n{lines}")
    begun = time.monotonic()
    shown = site.gym("--help")
    assert shown.returncode == 0
    assert time.monotonic() - begun < 10
    listed = site.gym("--plugins", "list", "--json")
    assert sum(item["dist"] == "gym-flood" for item in json.loads(listed.stdout)["plugins"]) == 20_000
    assert site.gym("train", site.recipe("toy")).returncode == 0
    missing = site.gym("train", site.recipe("no-such"))
    assert missing.returncode == PLUGIN
    assert len(missing.stderr) < 2000, "the error lists everything that is installed"
