"""Rounds with secure aggregation over loopback: members drop out at each step, one is hostile, and the server sees sums."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from soup_models import LAYER, flat, lora_score, pulled, tuned

from gym_core import GymError
from gym_deltasoup import DeltaSoup
from gym_deltasoup.client.client import SoupClient
from gym_deltasoup.client.contribute import contribute_model
from gym_deltasoup.client.secure import SecureContribution
from gym_deltasoup.config.server import ServerLimits, SoupServerConfig
from gym_deltasoup.ledger.ledger import Ledger
from gym_deltasoup.ledger.verify import verify
from gym_deltasoup.reports.html import page
from gym_deltasoup.reports.table import lines
from gym_deltasoup.rounds import secure_steps as steps
from gym_deltasoup.rounds.base import Base
from gym_deltasoup.rounds.closing import result
from gym_deltasoup.rounds.secure_steps import standing
from gym_deltasoup.rounds.vectors import change_of, digest, layout
from gym_deltasoup.rounds.verify_files import verify_files
from gym_deltasoup.server.serve import SoupServer
from gym_deltasoup.sources.adapters import LoraProduct
from gym_testkit.tiny import write_model

NAMES = [f"user-{number:02}" for number in range(12)]
PATTERN = f"{LAYER}.weight"
SIZE = 32 * 32


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    return write_model(tmp_path_factory.mktemp("base") / "model")


@pytest.fixture(scope="module")
def loras(base, tmp_path_factory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("loras")
    return {name: pulled(base, place / name, seed) for seed, name in enumerate(NAMES)}


class TwoStories(SoupClient):
    """A server that tells this member that the numbers of one did not come."""

    def __init__(self, url: str, key: Ed25519PrivateKey, hidden: str) -> None:
        super().__init__(url, key)
        object.__setattr__(self, "hidden", hidden)

    def secure_state(self, member: str) -> dict:
        told = super().secure_state(member)
        return {**told, "came": [name for name in told["came"] if name != self.hidden]}


class Community:
    """A server whose clock the test turns, and its members."""

    def __init__(self, base: Path, folder: Path, **options) -> None:
        rules = {"secure_aggregation": True, "enable_rewards": False, "secure_group": 3, "byzantine_threshold": 0.1}
        rules |= {"rank": 2, "secure_layers": (PATTERN,), "secure_clip": 10.0, "max_contributors": len(NAMES)}
        self.config = SoupServerConfig(
            folder=str(folder), base_model=str(base), port=0, limits=ServerLimits(free_bytes=0, burst=10**6),
            **rules | {"quality_threshold": 0.0} | options,
        )  # fmt: skip
        self.start()
        self.keys = {name: Ed25519PrivateKey.generate() for name in NAMES}
        self.base = Base(str(base))

    def start(self, evaluate: Callable | None = lora_score) -> None:
        self.server = SoupServer(self.config, evaluate)
        self.thread = threading.Thread(target=self.server.run)
        self.thread.start()

    def stop(self) -> None:
        self.server.stop()
        self.thread.join()

    def client(self, name: str) -> SoupClient:
        return SoupClient(f"http://127.0.0.1:{self.server.port}", self.keys[name], timeout=20, retries=2, backoff=0.05)

    def part(self, name: str, model: Path, scratch: Path) -> SecureContribution:
        client = self.client(name)
        client.join(name)
        shapes = layout(self.base, self.config.secure_layers, self.config.rank is not None)
        change = change_of(model, self.base, shapes, scratch / name)
        return SecureContribution(client, name, change, self.base.fingerprint, digest(shapes), wait=0.05)

    def until(self, step: str) -> None:
        """Let the time of steps be over until a round is at another one; `closed` waits for its end."""
        ledger, wait = self.server.service.community.ledger, time.monotonic() + 60
        while time.monotonic() < wait:
            with ledger.writing() as rows:
                if standing(rows, 1)[0] == step or (step == "closed" and ledger.round(1).state == step):
                    return
                rows.execute("UPDATE secure_rounds SET ends = 0")
            self.server.service.tick()
        raise AssertionError(f"round 1 is not at {step}")


@pytest.fixture
def community(base, tmp_path) -> Iterator[Community]:
    made = Community(base, tmp_path / "soup")
    yield made
    made.stop()


def products(path: Path) -> torch.Tensor:
    return LoraProduct(path).read(LAYER, 0, SIZE).double()


def test_a_round_with_drop_outs_and_a_hostile_member_is_the_mean_of_the_rest(community, loras, tmp_path):
    """Of four groups of three: in one somebody stops before the numbers, in one before the masks are off, and one is spoiled."""
    parts = {name: community.part(name, loras[name], tmp_path) for name in NAMES}
    for part in parts.values():
        part.advertise()
    community.until("share")
    teams = community.server.service.community.ledger.every_event()
    drawn = next(event.data["groups"] for event in teams if event.data["event"] == "groups drawn")
    assert sorted(name for group in drawn for name in group) == NAMES and [*map(len, drawn)] == [3] * 4
    gone, late, hostile = drawn[0][0], drawn[1][0], drawn[2][0]
    parts[hostile].change = torch.full((SIZE,), 1e9)
    sizes = {name: part.share() for name, part in parts.items()}
    community.until("masked")
    community.stop()  # and the server is another process from here on
    community.start()
    for part in parts.values():
        part.client = community.client(part.name)
    community.server.service.uploads.limits = ServerLimits(free_bytes=0, chunk_bytes=1000)
    for name, part in parts.items():
        if name != gone:
            part.send(sizes[name])
    contents = community.server.service.community.ledger.contributions(1)
    for (
        each
    ) in contents:  # no file says anything of a change: as many bits are set as not, and no number is as of any member
        held = np.fromfile(community.server.service.community.contents.path(each.content), np.uint8)
        assert len(held) == 4 * SIZE and abs(np.unpackbits(held).mean() - 0.5) < 0.02
    community.until("confirm")
    split = parts[drawn[3][0]]  # which is told of other members than the rest
    split.client = TwoStories(split.client.url, split.client.key, drawn[3][2])
    with pytest.raises(GymError, match="these are not the members whose numbers came"):
        split.confirm()
    for name, part in parts.items():
        if name not in (gone, late, split.name):
            part.confirm()
    community.until("reveal")
    with pytest.raises(GymError, match="was told of other members whose numbers came"):
        split.reveal()
    for name, part in parts.items():
        if name not in (gone, late, split.name):
            part.reveal()
    community.until("closed")
    found = result(community.server.service.community, 1)
    report = found.report
    assert report["dropped"] == [gone] and report["accepted"] == sorted({*NAMES} - {gone}) and not report["refused"]
    assert found.tolerated_byzantine == report["hostile"] == 1 and found.artifact.kind == "adapter"
    assert report["scores"]["after"] > 1.3 * report["scores"]["before"] and report["published"] == "result"
    honest = torch.stack([products(loras[name]) for name in NAMES if name not in (gone, hostile)]).mean(0)
    wrong = float((products(found.artifact.path) - honest).norm() / honest.norm())
    assert wrong < 0.4, wrong
    rows = report["contributors"]
    assert sorted(map(len, (told["members"] for told in rows.values()))) == [2, 3, 3, 3]
    spoiled = max(rows, key=lambda name: rows[name]["norm"])
    assert hostile in rows[spoiled]["members"] and spoiled in report["trimmed"]
    assert "group 1" in "\n".join(lines(report)) and "group 1" in page(report)
    events = community.client(NAMES[0]).ledger()
    assert not verify(*events).problems and verify(*events).signatures == 11
    assert not verify_files(Path(community.config.folder), events[1])
    assert community.client(NAMES[0]).member(NAMES[0])["reputation"] == 0


@pytest.mark.parametrize("private", [False, True])
def test_sums_are_those_of_the_changes_and_whole_models_are_written(private, base, tmp_path):
    """All members at once, each in a thread, as `gym soup contribute` does it: no clock has to run out."""
    rules = {"rank": None, "secure_layers": ("*",), "max_contributors": 6, "method": "uniform_soup"}
    if private:
        rules |= {"differential_privacy": True, "privacy_epsilon": 1e6, "privacy_clip": 4.0}
    made = Community(base, tmp_path / "soup", **rules)
    try:
        models = {name: tuned(base, tmp_path / name, seed) for seed, name in enumerate(NAMES[:6])}
        events, told = {}, []

        def contribute(name: str) -> None:
            client = made.client(name)
            client.join(name)
            events[name] = contribute_model(client, name, models[name], told.append)

        threads = [threading.Thread(target=contribute, args=(name,)) for name in models]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wait = time.monotonic() + 20
        while made.server.service.community.ledger.round().number == 1 and time.monotonic() < wait:
            time.sleep(0.05)
        found = result(made.server.service.community, 1)
        mean = torch.stack([flat(model) for model in models.values()]).mean(0)
        torch.testing.assert_close(flat(found.artifact.path), mean, rtol=0, atol=0.02 if private else 1e-6)
        assert not private or found.report["privacy"]["spent"].keys() == models.keys()
        assert len(events) == 6 and told == [] and found.tolerated_byzantine == 0
    finally:
        made.stop()


def test_a_round_in_which_too_few_are_left_keeps_the_base_and_the_next_begins(community, loras, tmp_path):
    parts = {name: community.part(name, loras[name], tmp_path) for name in NAMES}
    for part in parts.values():
        part.advertise()
    community.until("share")
    sizes = {name: part.share() for name, part in parts.items()}
    community.until("masked")
    for name in NAMES[:4]:  # and nobody reveals anything
        parts[name].send(sizes[name])
    community.until("closed")
    found = result(community.server.service.community, 1)
    assert found.report["published"] == "base" and found.artifact.path == community.base.path
    assert sorted(found.report["refused"]) == NAMES[:4] and len(found.report["dropped"]) == 8
    assert not verify(*community.client(NAMES[0]).ledger()).problems
    with pytest.raises(GymError, match="round 1 went on without this member"):
        parts[NAMES[5]].confirm()
    community.part(NAMES[0], loras[NAMES[0]], tmp_path / "again").advertise()
    assert community.client(NAMES[0]).server()["secure"]["members"] == 1


def test_what_would_show_a_member_is_refused(community, loras, base, tmp_path):
    service = community.server.service
    parts = {name: community.part(name, loras[name], tmp_path) for name in NAMES}
    first, client = parts[NAMES[0]], community.client(NAMES[0])
    with pytest.raises(GymError, match="would add up other weights"):
        first.say("advertise", layout="0" * 64, shares="1" * 64, masks="2" * 64)
    with pytest.raises(GymError, match="at the step `advertise`, not `share`"):
        first.say("share", shares={})
    with pytest.raises(GymError, match="in the open would show what one member trained"):
        client.contribute(NAMES[0], loras[NAMES[0]] / "adapter_model.safetensors", "adapter",
                          {"rank": 2, "alpha": 2.0}, community.base.fingerprint)  # fmt: skip
    for part in parts.values():
        part.advertise()
    community.until("share")
    told = client.secure_state(NAMES[0])["members"]
    with pytest.raises(GymError, match="one share for each other member"):
        first.say("share", shares={"nobody": "0" * 296})
    other = next(name for name in told if name != NAMES[0])
    first.rules = {**first.rules, "group": 4}
    with pytest.raises(GymError, match="a group of 3, and 4 were promised"):
        first.share()
    first.rules = {**first.rules, "group": 3}
    forged = {**told[other], "step": {**told[other]["step"], "masks": "3" * 64}}
    with pytest.raises(GymError, match=f"{other} did not sign this `advertise`"):
        first.checked(other, forged)
    for part in parts.values():
        part.share()
    community.until("masked")
    file = tmp_path / "short"
    file.write_bytes(bytes(8))
    with pytest.raises(GymError, match="8 bytes, and 4,096 are asked for"):
        client.contribute(NAMES[0], file, "masked", {"masked": True}, community.base.fingerprint)
    with pytest.raises(GymError, match="masked numbers, and a contribution in the open"):
        DeltaSoup(community.config.model_copy(update={"folder": str(tmp_path / "other")})).contribute(
            "a", loras[NAMES[0]]
        )
    moved = tuned(base, tmp_path / "moved", 0)
    with pytest.raises(GymError, match="which the members of this community do not add up"):
        community.part(NAMES[0], moved, tmp_path / "moved-scratch")
    assert service.community.ledger.contributions(1) == []


def test_what_one_member_asks_for_costs_no_more_where_there_are_many(tmp_path, monkeypatch):
    """Each asks every second, and what it says is written down alone: with a thousand members no step would end in time."""
    ledger, read = Ledger(tmp_path / "soup"), []
    with ledger.writing() as rows:
        for number in range(200):
            row = (1, f"user-{number:03}", steps.ADVERTISE, json.dumps({"step": {}, "signature": ""}))
            rows.execute("INSERT INTO secure_said VALUES (?, ?, ?, ?)", row)
        drawn = steps.draw(rows, 1, 4, ends=1e12)
        monkeypatch.setattr(steps.json, "loads", lambda text, loads=json.loads: read.append(text) or loads(text))
        told = steps.told(rows, 1, "user-007")
        assert (
            sorted(told["members"]) == sorted(next(names for names in drawn if "user-007" in names)) and len(read) == 5
        )
        steps.keep(rows, 1, steps.SHARE, "user-007", dict.fromkeys({*told["members"]} - {"user-007"}, "00"))
        assert len(read) == 10 and [*map(len, drawn)] == [4] * 50
    ledger.close()
