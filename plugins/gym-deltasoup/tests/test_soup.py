"""`DeltaSoup`: what the first pages of the project show runs as it stands; rounds gate, merge, reward and remember."""

from __future__ import annotations

import json
import math
import os
import signal
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from soup_models import LAYER, adapter, flat, lora_score, pulled, tuned

from gym_core import Artifact, GymError
from gym_deltasoup import DeltaSoup, DeltaSoupConfig
from gym_deltasoup.ledger.hash_chain import canonical
from gym_deltasoup.ledger.verify import verify
from gym_deltasoup.reports.html import page
from gym_deltasoup.reports.table import lines
from gym_deltasoup.rounds.checks import Refused
from gym_deltasoup.rounds.reputation import updated
from gym_deltasoup.rounds.verify_files import verify_files
from gym_deltasoup.sources.adapters import LoraProduct
from gym_deltasoup.work_folders import work_folder
from gym_testkit.tiny import write_model

FIRST_PAGE = """
from gym.quantization import DeltaSoupConfig, AggregationMethod

config = DeltaSoupConfig(
    method=AggregationMethod.BYZANTINE_ROBUST,
    differential_privacy=True,
    enable_rewards=True
)

from gym.quantization import DeltaSoup

soup = DeltaSoup(config)
soup.contribute(user_id="alice", model=model_alice)
soup.contribute(user_id="bob", model=model_bob)
"""
SKILL = """
from zoo.gym import DeltaSoup, DeltaSoupConfig, AggregationMethod

# Configure DeltaSoup
config = DeltaSoupConfig(
    method=AggregationMethod.BYZANTINE_ROBUST,
    differential_privacy=True,
    enable_rewards=True
)

# Users contribute improvements
soup = DeltaSoup(config)
soup.contribute(user_id="alice", model=model_alice)
soup.contribute(user_id="bob", model=model_bob)

# Aggregate community improvements
aggregated_model = soup.aggregate()

# Distribute rewards
rewards = soup.calculate_rewards()
"""


USERS = ("alice", "bob", "carol", "dave")


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    return write_model(tmp_path_factory.mktemp("base") / "model")


@pytest.fixture(scope="module")
def models(base, tmp_path_factory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("models")
    return {name: tuned(base, place / name, seed) for seed, name in enumerate(USERS[:3])}


@pytest.fixture(scope="module")
def loras(base, tmp_path_factory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("loras")
    return {name: pulled(base, place / name, seed) for seed, name in enumerate(USERS)}


def test_the_seeds_run_as_they_stand_with_two_contributors(base, models, tmp_path, monkeypatch):
    """The base is what the models say of themselves: they are in memory, loaded from it and trained."""
    from transformers import AutoModelForCausalLM

    monkeypatch.chdir(tmp_path)
    names = {}
    for user in ("alice", "bob"):
        model = AutoModelForCausalLM.from_pretrained(base)
        model.load_state_dict(load_file(models[user] / "model.safetensors"), strict=False)
        names[f"model_{user}"] = model
    exec(SKILL, names)
    private = names["aggregated_model"]
    assert private.report["privacy"]["epsilon"] == 1.0 and private.tolerated_byzantine == 0
    exec(SKILL.replace("differential_privacy=True", "folder='open'"), names)
    result = names["aggregated_model"]
    assert result.tolerated_byzantine == 0 and "no hostile one" in result.report["remarks"][0]
    mean = (flat(models["alice"]) + flat(models["bob"])) / 2
    torch.testing.assert_close(flat(result.artifact.path), mean, rtol=1e-5, atol=1e-6)
    assert sum(names["rewards"].values()) == 1000 and names["rewards"].keys() == {"alice", "bob"}
    exec(FIRST_PAGE, names)  # the next round, of the same folder
    with pytest.raises(GymError, match="round 2 needs 3 contributors, and there are 2"):
        names["soup"].aggregate(min_contributors=3)
    names["soup"].contribute("carol", models["carol"])
    assert names["soup"].aggregate(min_contributors=3).report["round"] == 2


def test_weights_by_name_are_those_of_a_model_also_where_two_are_tied(base, tmp_path):
    """The head is the embedding, so the state of the model has one tensor under two names, and the file of the base one."""
    from transformers import AutoModelForCausalLM

    state = AutoModelForCausalLM.from_pretrained(base).state_dict()
    assert state["lm_head.weight"].data_ptr() == state["model.embed_tokens.weight"].data_ptr()
    state["model.norm.weight"] += 0.01
    soup = soup_of(base, tmp_path / "soup", evaluate=None)
    given = load_file(soup.community.contents.path(soup.contribute("alice", state).content))
    assert given.keys() == load_file(base / "model.safetensors").keys()
    assert all(torch.equal(each, state[name]) for name, each in given.items())
    with pytest.raises(GymError, match="norm is a float, and no tensor"):
        soup.contribute("bob", {"norm": 1.0})


def soup_of(base: Path, folder: Path, **options) -> DeltaSoup:
    evaluate = options.pop("evaluate", lora_score)
    return DeltaSoup(DeltaSoupConfig(folder=str(folder), base_model=str(base), **options), evaluate=evaluate)


def test_a_community_goes_on_where_its_base_was_moved(models, tmp_path):
    old = write_model(tmp_path / "old")
    soup = soup_of(old, tmp_path / "soup", evaluate=None)
    for name, model in models.items():
        soup.contribute(name, load_file(model / "model.safetensors"))
    soup.community.close()
    old.rename(tmp_path / "new")
    soup = soup_of(tmp_path / "new", tmp_path / "soup", evaluate=None)
    assert soup.aggregate().report["base"]["name"] == str(tmp_path / "new")
    assert not verify(soup.community.server, soup.community.ledger.every_event()).problems


def test_a_full_disk_is_told_with_the_folder(base, models, tmp_path, monkeypatch):
    soup = soup_of(base, tmp_path / "soup", evaluate=None)
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", lambda file: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(GymError, match=r"soup\n  it cannot be taken: .*No space left[\s\S]*make room"):
            soup.contribute("alice", models["alice"])
    assert soup.contribute("alice", models["alice"]).member == "alice"


def test_a_round_gates_merges_rewards_and_remembers(base, loras, tmp_path):
    soup = soup_of(base, tmp_path / "soup", reward_scheme="leave_one_out")
    for name, model in loras.items():
        soup.contribute(name, model)
    soup.contribute("mallory", pulled(base, tmp_path / "mallory", 9, toward=-3.0))
    soup.contribute("copycat", pulled(base, tmp_path / "copycat", 0, noise=0.050001))
    soup.contribute("idle", pulled(base, tmp_path / "idle", 0, toward=0, noise=0))
    found = soup.aggregate()
    report = found.report
    assert set(report["accepted"]) == set(loras) and report["contributed"] == 7
    assert "below 0.8" in report["refused"]["mallory"] and "changes nothing" in report["refused"]["idle"]
    assert "copy of what alice" in report["refused"]["copycat"]
    assert report["scores"]["after"] > report["scores"]["before"] == pytest.approx(0.5)
    assert report["tolerated_byzantine"] == 1 and found.artifact.path.name == "model"
    points = soup.calculate_rewards()
    assert sum(points.values()) == 1000 and all(points[name] > 50 for name in loras)
    assert points["mallory"] == points["copycat"] == points["idle"] == 0
    members = soup.community.ledger.members()
    assert members["alice"].reputation == pytest.approx(0.1) and members["mallory"].reputation == 0
    events = [*soup.community.ledger.every_event()]
    assert not verify(soup.community.server, events).problems
    assert not verify_files(tmp_path / "soup", events)
    with pytest.raises(GymError, match="needs 2 contributors, and there are 0"):
        soup.aggregate()
    content = soup.community.contents.path(report["contributors"]["bob"]["content"])
    content.write_bytes(content.read_bytes()[:-1] + b"\1")
    assert verify_files(tmp_path / "soup", events) == ["the contribution of bob to round 1 is gone, or was changed"]


def test_copies_earn_a_family_no_more(base, loras, tmp_path):
    """Splitting one contribution into copies, scaled or with a little noise, raises what its family earns by 5 % at most."""
    totals = []
    for number, copies in enumerate((0, 2)):
        soup = soup_of(base, tmp_path / f"soup-{number}", reward_scheme="shapley")
        for name in ("alice", "bob", "carol"):
            soup.contribute(name, loras[name])
        for copy in range(copies):
            other = pulled(base, tmp_path / f"copy-{copy}", 0, toward=1 + 1e-3 * copy, noise=0.05 + 1e-5 * copy + 1e-6)
            soup.contribute(f"alice-{copy}", other)
        soup.aggregate()
        totals.append(sum(points for name, points in soup.calculate_rewards().items() if name.startswith("alice")))
    assert totals[1] <= 1.05 * totals[0]


@pytest.mark.parametrize("private", [False, True])
def test_what_earlier_rounds_saw_earns_nobody_anything(private, base, loras, tmp_path):
    """Bytes of somebody, near copies of them and of the result are refused; a member may come with its own again."""
    soup = soup_of(base, tmp_path / "soup", evaluate=None, differential_privacy=private, privacy_epsilon=1e4)
    soup.contribute("alice", loras["alice"])
    soup.contribute("bob", loras["bob"])
    first = soup.aggregate().artifact.path
    with pytest.raises(Refused, match="these very bytes to round 1"):
        soup.contribute("mallory", loras["alice"])
    soup.contribute("alice", loras["alice"])
    soup.contribute("carol", loras["carol"])
    soup.contribute("mallory", pulled(base, tmp_path / "near", 1, noise=0.050001))  # what bob trained
    soup.contribute("thief", first)
    report = soup.aggregate().report
    assert report["refused"].pop("thief") == "it is a copy of the result of round 1"
    if private:  # what one contributed decides nothing about another
        assert not report["refused"] and "mallory" in report["accepted"]
        return
    assert report["refused"] == {"mallory": "it is a copy of what bob contributed to round 1"}
    assert report["accepted"] == ["alice", "carol"]
    points = report["rewards"]["points"]
    assert points["mallory"] == points["thief"] == 0 and points["alice"] and points["carol"]


def test_who_was_alone_in_a_round_may_come_again_though_the_result_is_the_same(base, loras, tmp_path):
    soup = soup_of(base, tmp_path / "soup", evaluate=None, min_contributors=1)
    for _ in range(3):
        soup.contribute("alice", loras["alice"])
        assert soup.aggregate().report["accepted"] == ["alice"]
    soup.contribute("bob", pulled(base, tmp_path / "copy", 0, noise=0.050001))
    with pytest.raises(GymError, match="1 were refused"):
        soup.aggregate()


@pytest.mark.parametrize("kind", ["model", "adapter"])
def test_with_privacy_who_is_refused_counts_as_no_change(kind, base, tmp_path):
    """So the number of inputs, which decides the noise, does not tell who was refused."""
    made = {"model": lambda number: tuned(base, tmp_path / f"m{number}", number)}
    made["adapter"] = lambda number: adapter(base, tmp_path / f"a{number}", number)
    soup = soup_of(base, tmp_path / "soup", evaluate=None, differential_privacy=True, method="trimmed_mean")
    for number in range(3):
        soup.contribute(f"user-{number}", made[kind](number))
    nothing = {"model": base, "adapter": adapter(base, tmp_path / "nothing", 9, size=0.0)}
    soup.contribute("idle", nothing[kind])
    found = soup.aggregate()
    assert "changes nothing" in found.report["refused"]["idle"] and len(found.report["accepted"]) == 3
    assert found.artifact.details["merge"]["inputs"] == 4 and found.report["tolerated_byzantine"] == 1
    assert "idle" not in found.report["privacy"]["spent"]
    given = [each["content"] for each in found.report["contributors"].values()]
    for file in ("merge.json", "README.md"):
        told = (found.artifact.path / file).read_text()
        assert "user-0" in told and not any(content[:12] in told for content in given), "a hash tells who holds what"


@pytest.mark.parametrize(
    ("score", "told"),
    [(0.1, "score 1 before, 0.1 after"), (math.nan, "no number after"), (-math.inf, "no number after")],
)
def test_a_result_that_is_worse_than_the_base_is_not_published(score, told, base, loras, tmp_path):
    def odd(artifact: Artifact) -> float:
        return score if "merge" in artifact.details and artifact.details["merge"]["inputs"] > 1 else 1.0

    soup = soup_of(base, tmp_path / "soup", evaluate=odd)
    for name in ("alice", "bob"):
        soup.contribute(name, loras[name])
    found = soup.aggregate()
    assert found.report["published"] == "base" and found.artifact.path == base
    assert told in "\n".join(lines(found.report)) and told in page(found.report)
    canonical(found.report)  # which no infinity, as the loss of a broken model has, is in


def test_a_contribution_that_breaks_the_evaluation_ends_no_round(base, loras, tmp_path):
    """Large weights make sampling raise: whoever sends them would keep the rounds of all others from ending."""
    down: list[bool] = []

    def evaluate(artifact: Artifact) -> float:
        if down:
            raise ConnectionError("the judge is gone")
        found = lora_score(artifact)
        if found < 0.1:
            raise RuntimeError("probability tensor contains either `inf`, `nan` or element < 0")
        return found

    soup = soup_of(base, tmp_path / "soup", evaluate=evaluate)
    for name, model in loras.items():
        soup.contribute(name, model)
    soup.contribute("mallory", pulled(base, tmp_path / "mallory", 9, toward=1e6))
    down.append(True)
    with pytest.raises(ConnectionError, match="the judge is gone"):  # which is nobody's fault
        soup.aggregate()
    down.clear()
    report = soup.aggregate().report
    assert set(report["accepted"]) == set(loras) and "breaks what evaluates it" in report["refused"]["mallory"]


@pytest.mark.parametrize(
    ("rules", "match"),
    [
        ({"min_contributors": 5, "max_contributors": 3}, "takes 3 contributors, and needs 5"),
        ({"method": "fltrust"}, "a round knows of none"),
        ({"method": "greedy_soup"}, "`greedy_soup` asks how good models are"),
        ({"reward_scheme": "shapley"}, "`shapley` asks how good models are"),
        ({"method": "slerp"}, r"slerp needs exactly 2 inputs, and there are 1000"),
        ({"method": "bulyan"}, "bulyan needs at least 1203 inputs"),
        ({"method": "krum", "differential_privacy": True}, "how far one input moves krum"),
    ],
)
def test_rules_by_which_no_round_can_end_are_refused_before_anybody_contributes(rules, match, base, tmp_path):
    with pytest.raises(GymError, match=match):
        soup_of(base, tmp_path / "soup", evaluate=None, **rules)
    assert not (tmp_path / "soup").exists()


def test_coalitions_of_fewer_than_a_merger_takes_are_worth_the_base(base, loras, tmp_path):
    soup = soup_of(base, tmp_path / "soup", method="slerp", max_contributors=2, reward_scheme="shapley")
    for name in ("alice", "bob"):
        soup.contribute(name, loras[name])
    assert soup.aggregate().rewards == {"alice": 500, "bob": 500}


def test_the_operator_may_name_the_kind_and_not_who_comes_first(base, loras, models, tmp_path):
    soup = soup_of(base, tmp_path / "soup", kind="adapter")
    with pytest.raises(Refused, match="of kind model, and this community merges kind adapter"):
        soup.contribute("mallory", models["alice"])
    soup.contribute("alice", loras["alice"])


def test_the_gate_asks_for_quality_from_a_floor_and_for_safety(base, tmp_path):
    """Both at their bounds: 0.8 of what the base has above the floor, and 0.95 of its safety; the result is asked too."""
    given = {
        "all": (1.0, 1.0),
        "just": (0.842, 0.951),
        "dull": (0.838, 1.0),
        "unsafe": (1.0, 0.949),
        "odd": (1.0, float("nan")),
    }
    paths = {name: pulled(base, tmp_path / name, seed) for seed, name in enumerate(given)}
    said = {
        (name, kind): value for name in given for kind, value in zip(("quality", "safety"), given[name], strict=True)
    }
    products = {name: LoraProduct(path).read(LAYER, 0, 1024) for name, path in paths.items()}

    def told(kind: str, artifact: Artifact) -> float:
        if artifact.kind == "model":
            return 1.0
        found = LoraProduct(artifact.path).read(LAYER, 0, 1024)
        return next(
            (said[name, kind] for name, each in products.items() if torch.allclose(found, each, atol=1e-5)),
            result[kind],
        )

    for number, result in enumerate(({"quality": 1.0, "safety": 0.96}, {"quality": 1.0, "safety": 0.94})):
        soup = soup_of(base, tmp_path / f"soup-{number}", evaluate=partial(told, "quality"), quality_floor=0.2)
        soup.community.safety = partial(told, "safety")
        for name, path in paths.items():
            soup.contribute(name, path)
        report = soup.aggregate().report
        assert report["accepted"] == ["all", "just"] and report["safety"] == {"before": 1.0, "after": result["safety"]}
        assert report["refused"]["dull"] == "quality 0.797 is below 0.8 of that of the base"
        assert all(report["refused"][name].startswith("safety ") for name in ("unsafe", "odd"))
        assert report["published"] == ("base" if number else "result")
        assert ("The result is less safe than the base, so the base stays." in report["remarks"]) == bool(number)
        assert "safety 1 before" in "\n".join(lines(report)) and "safety 1 before" in page(report)


def test_a_sum_of_members_without_a_reputation_is_whole(base, models, tmp_path):
    """Weights are relative: else all changes of a first round would be ten times too small."""
    soup = soup_of(base, tmp_path / "soup", method={"name": "ties", "density": 1.0, "normalize": False}, evaluate=None)
    for name in ("alice", "bob"):
        soup.contribute(name, models[name])
    first, second = (flat(models[name]) - flat(base) for name in ("alice", "bob"))
    found = flat(soup.aggregate().artifact.path) - flat(base)
    same = first.sign() == second.sign()
    torch.testing.assert_close(found[same], (first + second)[same], rtol=1e-4, atol=1e-6)


def test_reputation_and_participation_follow_rounds(base, tmp_path):
    soup = soup_of(base, tmp_path / "soup", method="weighted_mean")
    for number in range(3):
        for name in ("alice", "bob") if number == 1 else ("alice", "bob", "carol"):
            path = pulled(base, tmp_path / f"{name}-{number}", 10 * number + ord(name[0]))
            soup.contribute(name, path)
        report = soup.aggregate().report
    members = soup.community.ledger.members()
    assert updated(0.8, 0.9, 0.9) == pytest.approx(0.81)
    assert members["alice"].reputation == pytest.approx(1 - 0.9**3)
    assert members["carol"].reputation == pytest.approx(0.1 * 0.99 * 0.9 + 0.1)
    points = report["rewards"]["points"]
    assert points["alice"] == points["bob"] > points["carol"] and sum(points.values()) == 1000


@pytest.mark.parametrize(("scale", "first", "second"), [(5e44, 1e-10, 1e-40), (1e200, 0.0, 0.1), (1.0, 1e60, 1e-60)])
def test_no_adapter_becomes_infinite_where_it_is_read_in_fp32(base, tmp_path, scale, first, second):
    """Such a round could never end by a rule that is not robust, whoever else contributed."""
    far, wide = adapter(base, tmp_path / "far", 1), torch.float64
    halves = {"A": torch.full((2, 32), first, dtype=wide), "B": torch.full((32, 2), second, dtype=wide)}
    weights = {f"base_model.model.{LAYER}.lora_{half}.weight": each for half, each in halves.items()}
    save_file(weights, far / "adapter_model.safetensors", {"format": "pt"})
    config = json.loads((far / "adapter_config.json").read_text())
    (far / "adapter_config.json").write_text(json.dumps(config | {"lora_alpha": 2 * scale}))
    soup = soup_of(base, tmp_path / "soup", method="uniform_soup", evaluate=None)
    with pytest.raises(Refused, match="too large for a weight"):
        soup.contribute("mallory", far)
    for seed in range(2):
        soup.contribute(f"user-{seed}", adapter(base, tmp_path / f"adapter-{seed}", seed))
    assert soup.aggregate().report["accepted"] == ["user-0", "user-1"]


def test_what_computes_otherwise_than_the_base_is_refused(base, tmp_path):
    """Its weights alone would be merged, into a model that computes as the base does."""
    soup = soup_of(base, tmp_path / "soup", evaluate=None)
    scaled = {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}
    one, whole = adapter(base, tmp_path / "adapter", 0), tuned(base, tmp_path / "whole", 0)
    details = {"adapter": "gym_adapters:LoRA", "config": scaled}
    told = json.loads((whole / "config.json").read_text())
    (whole / "config.json").write_text(json.dumps(told | scaled))
    for model in (Artifact(one, "adapter", str(base), details), Artifact(whole, details={"base": str(base)})):
        with pytest.raises(Refused, match="another configuration than the base: `rope_parameters` differs"):
            soup.contribute("alice", model)
    (whole / "config.json").write_text(json.dumps(told | {"use_cache": False, "architectures": None}))
    soup.contribute("alice", Artifact(whole, details={"base": str(base)}))


def test_adapters_are_merged_and_those_of_other_layers_refused(base, tmp_path):
    soup = soup_of(base, tmp_path / "soup", evaluate=None)
    for seed in range(3):
        soup.contribute(f"user-{seed}", adapter(base, tmp_path / f"adapter-{seed}", seed))
    odd = adapter(base, tmp_path / "odd", 7)
    weights = load_file(odd / "adapter_model.safetensors")
    moved = {name.replace("q_proj", "o_proj"): weight for name, weight in weights.items()}
    save_file(moved, odd / "adapter_model.safetensors", {"format": "pt"})
    soup.contribute("odd", odd)
    with pytest.raises(Refused, match="of kind model, and this community merges kind adapter"):
        soup.contribute("whole", base)
    report = soup.aggregate().report
    assert len(report["accepted"]) == 3 and "other layers" in report["refused"]["odd"]
    assert report["rewards"]["points"]["odd"] == 0 and report["scores"] == {"before": None, "after": None}


def header(length: int, text: str = "") -> bytes:
    return length.to_bytes(8, "little") + text.encode()


def test_what_is_no_contribution_is_refused_and_written_down(base, bench, models, tmp_path):
    soup = soup_of(base, tmp_path / "soup", evaluate=None)
    sound = load_file(base / "model.safetensors")
    name = "model.norm.weight"

    def refused(match: str, model, user: str) -> None:
        with pytest.raises(Refused, match=match):
            soup.contribute(user, model)

    refused("holds NaN", {**sound, name: torch.full_like(sound[name], torch.nan)}, "nan")
    refused("infinite, or too large", {**sound, name: torch.full_like(sound[name], torch.inf)}, "inf")
    refused("infinite, or too large", {**sound, name: torch.full_like(sound[name], 1e30)}, "large")
    refused("the model has no weight model.norm.weight", {key: sound[key] for key in sound if key != name}, "less")
    refused("the base has no weight extra", {**sound, "extra": torch.ones(1)}, "more")
    refused("has the shape", {**sound, name: torch.ones(3)}, "shape")
    refused("trained from another base", load_file(bench.model(7) / "model.safetensors"), "other")
    text = json.dumps({name: {"dtype": "F32", "shape": [10**9], "data_offsets": [0, 4 * 10**9]}})
    for number, bytes_ in enumerate((header(2**62), header(len(text), text) + b"1234", b"", b"1234567", header(8))):
        path = tmp_path / f"lie-{number}"
        path.mkdir()
        (path / "config.json").write_text((base / "config.json").read_text())
        (path / "model.safetensors").write_bytes(bytes_)
        refused("header says|no sound file", path, f"liar-{number}")
    with pytest.raises(GymError, match=r"trains from .* not"):
        soup_of(bench.model(7), tmp_path / "soup", evaluate=None)
    with pytest.raises(GymError, match="is no name of a user"):
        soup.contribute("../alice", models["alice"])
    soup.contribute("alice", models["alice"])
    assert soup.contribute("alice", models["alice"]).content, "again changes nothing"
    refused("alice contributed to round 1 already", models["bob"], "alice")
    refused("these very bytes", models["alice"], "bob")
    events = [*soup.community.ledger.every_event()]
    assert sum(event.data["event"] == "refused" for event in events) == 12
    assert [event.data["member"] for event in events if event.data["event"] == "accepted"] == ["alice"]
    assert not [*(tmp_path / "soup").glob(".taken-*")]


def test_reports_are_shown_and_obey_nobody(base, loras, tmp_path):
    soup = soup_of(base, tmp_path / "soup")
    for name in ("alice", "bob"):
        soup.contribute(name, loras[name])
    report = json.loads(json.dumps(dict(soup.aggregate().report)))
    name = "<script>alert(1)</script>\x1b[31m"
    for place in (report["contributors"], report["rewards"]["points"]):
        place[name] = place.pop("bob")
    report["refused"]["<b>"] = "<img src=x>"
    report["refused_at_upload"].append({"member": "<i>", "why": "<u>"})
    made = page(report)
    assert made.count("<svg") == 6 and "&lt;script&gt;" in made
    assert not any(each in made for each in ("<script", "<b>", "<img", "<i>", "<u>", "http:", "https:"))
    assert "default-src 'none'" in made
    told = "\n".join(lines(report))
    assert "\x1b" not in told and "alice" in told and "score 0.5 before" in told


def die(artifact: Artifact) -> float:
    os.kill(os.getpid(), signal.SIGKILL)
    return 0.0


def test_killed_at_the_end_of_a_round_it_is_ended_again(base, loras, tmp_path):
    soup = soup_of(base, tmp_path / "soup", evaluate=None)
    for name in ("alice", "bob"):
        soup.contribute(name, loras[name])
    pid = os.fork()
    if pid == 0:
        torch.set_num_threads(1)  # threads of the parent are not there any more, and would be waited for
        try:
            soup_of(base, tmp_path / "soup", evaluate=die).aggregate()
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert soup.community.ledger.round().state == "closing"
    with pytest.raises(Refused, match="round 1 is closing"):
        soup.contribute("carol", loras["carol"])
    report = soup.aggregate().report
    assert report["accepted"] == ["alice", "bob"] and soup.community.ledger.round().number == 2
    assert not [*(tmp_path / "soup/rounds").glob(".work-*")] and not [*(tmp_path / "soup/rounds").glob(".1.*")]
    assert not verify(soup.community.server, soup.community.ledger.every_event()).problems


class Dying:
    """A model whose process is killed while it is saved."""

    name_or_path = ""

    def save_pretrained(self, save_directory: str) -> None:
        Path(save_directory).mkdir()
        os.kill(os.getpid(), signal.SIGKILL)


def test_what_a_killed_contribution_left_is_cleared_away_by_the_next_and_by_the_round(base, loras, tmp_path):
    """A contribution of a process that lives keeps its folder."""
    soup = soup_of(base, tmp_path / "soup", evaluate=None)
    taking = partial(soup.contribute, "alice", loras["alice"]), partial(soup.contribute, "bob", loras["bob"])
    with work_folder(tmp_path / "soup", ".taken-") as mine:
        for clears in (*taking, soup.aggregate):
            pid = os.fork()
            if pid == 0:
                try:
                    soup_of(base, tmp_path / "soup", evaluate=None).contribute("carol", Dying())
                finally:
                    os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
            assert len([*(tmp_path / "soup").glob(".taken-*")]) == 2
            clears()
            assert [*(tmp_path / "soup").glob(".taken-*")] == [mine]
