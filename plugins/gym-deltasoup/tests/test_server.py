"""The community server on loopback: what it takes, what it refuses and why, and that a storm and kills lose nothing."""

from __future__ import annotations

import base64
import hashlib
import json
import resource
import shutil
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from safetensors.torch import save_file
from soup_models import LAYER, adapter, tuned
from soup_storm import CHUNK, manifest_of, post, raw, request, storm

from gym_core import Artifact, BusyError, GymError, RecipeError
from gym_deltasoup.client.client import SoupClient
from gym_deltasoup.client.fetch import fetch
from gym_deltasoup.config.server import ServerLimits, SoupServerConfig, load_server
from gym_deltasoup.ledger.ledger import Contribution
from gym_deltasoup.ledger.signatures import message, public, signed
from gym_deltasoup.ledger.verify import verify
from gym_deltasoup.rounds import secure_steps
from gym_deltasoup.rounds.closing import result
from gym_deltasoup.server.rate_limits import RateLimits
from gym_deltasoup.server.serve import SoupServer
from gym_deltasoup.server.service import Service
from gym_deltasoup.server.uploads import Uploads
from gym_deltasoup.soup_commands import soup

SHAPE = {"rank": 2, "alpha": 4.0}


class Running:
    """A server in a thread, and a member of it."""

    def __init__(self, base: Path, folder: Path, **options) -> None:
        limits = {"chunk_bytes": CHUNK, "contribution_bytes": 1 << 20, "free_bytes": 0, "header_seconds": 0.5}
        limits |= {"body_seconds": 0.5, "requests_per_second": 1e6, "burst": 10**6, **options.pop("limits", {})}
        config = SoupServerConfig(
            folder=str(folder), base_model=str(base), port=0, limits=ServerLimits(**limits), **options
        )
        self.said: list[str] = []
        self.server = SoupServer(config, say=self.said.append)
        self.thread = threading.Thread(target=self.server.run)
        self.thread.start()
        self.service, self.port = self.server.service, self.server.port
        self.community = self.service.community
        self.key = Ed25519PrivateKey.generate()
        self.client = SoupClient(f"http://127.0.0.1:{self.port}", self.key, timeout=20, retries=0)

    def stop(self) -> None:
        self.server.stop()
        self.thread.join()


@pytest.fixture
def base(bench) -> Path:
    return bench.model()


@pytest.fixture
def running(base, tmp_path) -> Iterator[Running]:
    made = Running(base, tmp_path / "soup")
    made.client.join("anna")
    yield made
    made.stop()


def file_of(path: Path, seed: int = 0, value: float | None = None) -> Path:
    draw = torch.Generator().manual_seed(seed)
    halves = {"A": torch.randn(2, 32, generator=draw), "B": torch.randn(32, 2, generator=draw)}
    if value is not None:
        halves["A"][0, 0] = value
    save_file({f"base_model.model.{LAYER}.lora_{half}.weight": each for half, each in halves.items()}, path)
    return path


def contribute(running: Running, file: Path, member: str = "anna", client: SoupClient | None = None):
    return (client or running.client).contribute(member, file, "adapter", SHAPE, running.community.base.fingerprint)


def status_of(answer: bytes) -> int:
    return int(answer[9:12]) if answer else 0


def refused(answer: dict | None) -> str:
    return answer["problems"][0]["why"]


def test_a_contribution_goes_on_where_it_broke_off_and_counts_once(running, tmp_path):
    file = file_of(tmp_path / "a.safetensors")
    signed_ = manifest_of(running.client, "anna", file, running.community.base.fingerprint)
    begun = post(running.client, "/v1/contributions", signed_)
    part = file.read_bytes()[:CHUNK]
    digest = base64.b64encode(hashlib.sha256(part).digest()).decode()
    line = f"PATCH /v1/uploads/{begun['upload']} HTTP/1.1"
    header = f"Content-Digest: sha-256=:{digest}:"

    def sent(body: bytes, *headers: str) -> int:
        return status_of(raw(running.port, request(line, body, *headers)))

    assert sent(part, "Upload-Offset: 0") == 400, "without its hash"
    assert sent(part[::-1], header, "Upload-Offset: 0") == 400, "with the hash of other bytes"
    assert sent(part * 2, header, "Upload-Offset: 0") == 413
    half = request(line, part, header, "Upload-Offset: 0")[:-40]
    assert status_of(raw(running.port, half)) in (0, 408), "a body that stays half"
    assert running.service.uploads.find(begun["upload"]).received == 0
    assert sent(part, header, "Upload-Offset: 0") == 202 and sent(part, header, "Upload-Offset: 0") == 409
    finish = request(f"POST /v1/uploads/{begun['upload']}/finish HTTP/1.1")
    assert status_of(raw(running.port, finish)) == 409, "before it is whole"
    event = contribute(running, file)
    assert contribute(running, file) == event and running.community.ledger.contributions(1)[0].member == "anna"
    assert event.data["manifest"]["member"] == "anna" and not [*(tmp_path / "soup/uploads").iterdir()]
    told = verify(*running.client.ledger())
    assert not told.problems and told.signatures == 1


def test_an_upload_that_begins_while_others_are_forgotten_keeps_its_parts(running, tmp_path, monkeypatch):
    """As at the end of each round, when those who waited for the next one begin."""
    file, uploads = file_of(tmp_path / "a.safetensors"), running.service.uploads
    writing, begun = running.community.ledger.writing, []

    @contextmanager
    def then_another_begins():
        with writing() as rows:
            yield rows
        monkeypatch.undo()
        signed_ = manifest_of(running.client, "anna", file, running.community.base.fingerprint)
        begun.append(post(running.client, "/v1/contributions", signed_)["upload"])
        uploads.add(begun[0], 0, file.read_bytes()[:CHUNK])

    (uploads.folder / "of nobody").write_bytes(b"part")
    monkeypatch.setattr(running.community.ledger, "writing", then_another_begins)
    uploads.forget()
    assert [each.name for each in uploads.folder.iterdir()] == begun
    assert contribute(running, file).data["member"] == "anna"


def test_an_upload_that_ends_while_a_round_is_closing_goes_on_where_the_round_could_not_end(running, tmp_path):
    file, ledger = file_of(tmp_path / "a.safetensors"), running.community.ledger

    def state(now: str) -> None:
        with ledger.writing() as rows:
            rows.execute("UPDATE rounds SET state = ?", (now,))

    signed_ = manifest_of(running.client, "anna", file, running.community.base.fingerprint)
    begun = post(running.client, "/v1/contributions", signed_)["upload"]
    for place in range(0, file.stat().st_size, CHUNK):
        running.service.uploads.add(begun, place, file.read_bytes()[place : place + CHUNK])
    state("closing")
    with pytest.raises(GymError, match="round 1 is closing"):
        running.service.uploads.finish(begun)
    state("open")
    assert contribute(running, file).data["member"] == "anna"


def test_changed_bytes_are_refused_on_resume_and_at_the_end(running, tmp_path):
    file = file_of(tmp_path / "a.safetensors")
    fingerprint = running.community.base.fingerprint
    begun = post(running.client, "/v1/contributions", manifest_of(running.client, "anna", file, fingerprint))
    uploads = running.service.uploads
    uploads.add(begun["upload"], 0, file.read_bytes()[:CHUNK])
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    uploads.add(begun["upload"], CHUNK, bytes(content[CHUNK:]))
    with pytest.raises(GymError, match="not those that were signed"):
        running.client.contribute("anna", file, "adapter", SHAPE, fingerprint)
    assert running.client.member("anna")["refused"] and not [*(tmp_path / "soup/uploads").iterdir()]
    begun = post(running.client, "/v1/contributions", manifest_of(running.client, "anna", file, fingerprint))
    uploads.add(begun["upload"], 0, file.read_bytes()[:CHUNK])
    file.write_bytes(bytes(content))  # another content: it is begun anew, and the parts of before are gone
    other = post(running.client, "/v1/contributions", manifest_of(running.client, "anna", file, fingerprint))
    assert other["received"] == 0 and other["upload"] != begun["upload"]
    answer = raw(running.port, request(f"GET /v1/uploads/{begun['upload']} HTTP/1.1"))
    assert status_of(answer) == 404


def test_what_is_signed_holds_for_one_server_round_base_member_and_content(running, base, tmp_path):
    file, print_of = file_of(tmp_path / "a.safetensors"), running.community.base.fingerprint
    client = running.client

    def said(**changed) -> str:
        return refused(post(client, "/v1/contributions", manifest_of(client, "anna", file, print_of, **changed)))

    assert "signed for another server" in said(server="0" * 32)
    assert "for round 2, and round 1 is open" in said(round=2)
    assert "trained from 000000000000" in said(base="0" * 64)
    assert "bert is no member" in said(member="bert")
    assert "your clock says" in said(time=time.time() - 4000) and "your clock says" in said(time=time.time() + 4000)
    assert "more than 1,048,576" in said(size=1 << 21)
    assert "not of their kinds" in said(size="600") and "not of their kinds" in said(
        details={"rank": 2.0, "alpha": "4"}
    )
    assert "give `rank` and `alpha`" in said(details={"rank": 2}) and "of kind model, not adapter" in said(details={})
    assert "Extra inputs" in said(more=1)
    whole = manifest_of(client, "anna", file, print_of)
    for place, value in (("content", "1" * 64), ("round", 3), ("time", 5.0)):
        other = {**whole, "manifest": {**whole["manifest"], place: value}}
        assert "signature does not hold" in refused(post(client, "/v1/contributions", other))
    stranger = SoupClient(client.url, Ed25519PrivateKey.generate(), retries=0)
    forged = manifest_of(stranger, "anna", file, print_of)
    assert "signature does not hold" in refused(post(client, "/v1/contributions", forged))
    told = {"server": client.server()["server"], "member": "eve", "key": public(running.key), "time": time.time()}
    stolen = {"enrolment": told, "signature": signed(stranger.key, message("enrolment", told))}
    assert "signature does not hold" in refused(post(client, "/v1/members", stolen))
    for joins, match in (
        (stranger, "somebody else has this name"),
        (client, r"another name here\n  -> go by that name, or .* another key"),
    ):
        with pytest.raises(GymError, match=match):
            joins.join("anna" if joins is stranger else "anne")
    assert client.join("anna")["member"] == "anna", "again changes nothing"
    contribute(running, file)
    stranger.join("bert")
    with pytest.raises(GymError, match="these very bytes"):
        contribute(running, file, "bert", stranger)


def test_files_that_lie_are_refused_and_a_member_has_five_tries(running, bench, tmp_path):
    def lie(name: str, data: bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(data)
        return path

    body = file_of(tmp_path / "sound").read_bytes()
    text = json.dumps({"w": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}}).encode()
    lies = [
        (lie("long", (1 << 60).to_bytes(8, "little") + body), "the header says that it has"),
        (lie("cut", len(text).to_bytes(8, "little") + text), "no sound file"),
        (file_of(tmp_path / "nan", value=float("nan")), "holds NaN"),
        (file_of(tmp_path / "inf", value=float("inf")), r"holds (NaN|numbers that are infinite)"),
    ]
    for file, match in lies:
        with pytest.raises(GymError, match=match):
            contribute(running, file)
    short = adapter(bench.model_of(48, 48), tmp_path / "short", 0)
    with pytest.raises(GymError, match=r"is \[.*, not \["):
        running.client.contribute(
            "anna",
            short / "adapter_model.safetensors",
            "adapter",
            {"rank": 4, "alpha": 4.0},
            running.community.base.fingerprint,
        )
    with pytest.raises(GymError, match="5 files of anna were refused"):
        contribute(running, file_of(tmp_path / "good", 5))
    assert len(running.client.member("anna")["refused"]) == 5


def test_slow_and_strange_requests_end(running):
    began = time.monotonic()
    for slow in (
        b"GET /v1/server HTTP/1.1\r\nX: ",
        b"POST /v1/members HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{",
    ):
        with socket.create_connection(("127.0.0.1", running.port), timeout=20) as connection:
            connection.sendall(slow)
            assert status_of(connection.recv(100)) in (0, 408)
    assert time.monotonic() - began < 15
    for line, status in (
        ("GET /v1/nothing HTTP/1.1", 404),
        ("DELETE /v1/ledger HTTP/1.1", 405),
        ("GET /v1/ledger?after=x HTTP/1.1", 400),
        ("GET /v1/rounds/1/report HTTP/1.1", 404),
        ("GET /v1/rounds/" + "9" * 40 + "/report HTTP/1.1", 404),
        ("GET /v1/rounds/" + "9" * 5_000 + "/report HTTP/1.1", 404),  # more digits than Python makes a number of
        ("GET /v1/rounds/%D9%A3/report.html HTTP/1.1", 404),
        ("GET /" + "a" * 9_000 + " HTTP/1.1", 404),
    ):
        assert status_of(raw(running.port, request(line))) == status, line[:50]
    for number in range(3):
        line = f"POST /v1/uploads/{number}{'a' * 9_000}/finish HTTP/1.1"
        assert status_of(raw(running.port, request(line))) == 404
    assert not running.service.uploads.turns, "whoever guesses fills the memory of the server"
    for body in (b"[" * 60_000, b'{"a": NaN}', b'"\xff"', b'{"manifest": {"member": "\\ud800"}}', b"{}"):
        assert status_of(raw(running.port, request("POST /v1/contributions HTTP/1.1", body))) == 400
    huge = (
        b"POST /v1/members HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n20000\r\n" + b"x" * 0x20000
    )
    assert status_of(raw(running.port, huge)) in (0, 413)


def test_a_full_disk_keeps_what_is_there_and_loses_nothing(running, tmp_path):
    """No file may grow: as on a full disk, writing fails in the middle."""
    big = {
        f"base_model.model.{LAYER}.lora_{half}.weight": torch.randn(shape)
        for half, shape in (("A", (64, 32)), ("B", (32, 64)))
    }
    file = tmp_path / "big"
    save_file(big, file)
    fingerprint = running.community.base.fingerprint
    before, most = signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.getrlimit(resource.RLIMIT_FSIZE)
    begun = post(running.client, "/v1/contributions", manifest_of(running.client, "anna", file, fingerprint))
    uploads = running.service.uploads
    uploads.add(begun["upload"], 0, file.read_bytes()[:1000])
    resource.setrlimit(resource.RLIMIT_FSIZE, (1200, most[1]))
    try:
        with pytest.raises(GymError, match="the disk does not take it"):
            running.client.contribute("anna", file, "adapter", {"rank": 64, "alpha": 1.0}, fingerprint)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, most)
        signal.signal(signal.SIGXFSZ, before)
    assert uploads.find(begun["upload"]).received == 1000
    with pytest.raises(GymError, match="no room"):
        Uploads(running.community, ServerLimits(free_bytes=1 << 60)).begin(
            Contribution(1, "bert", "0" * 64, 10, "adapter", SHAPE), {}, ""
        )
    event = running.client.contribute("anna", file, "adapter", {"rank": 64, "alpha": 1.0}, fingerprint)
    assert running.community.contents.path(event.data["content"]).read_bytes() == file.read_bytes()


def test_rounds_end_by_the_clock_and_reports_are_there_for_all(base, tmp_path):
    running = Running(base, tmp_path / "soup", contribution_window=1e-3, min_contributors=2)
    try:
        for seed, name in enumerate(("anna", "bert")):
            client = SoupClient(running.client.url, Ed25519PrivateKey.generate(), retries=0)
            client.join(name)
            contribute(running, file_of(tmp_path / name, seed), name, client)
        until = time.monotonic() + 30
        while running.client.server()["round"]["number"] == 1 and time.monotonic() < until:
            time.sleep(0.1)
        report = running.client.report(1)
        assert len(report["accepted"]) >= 2 and "Enrolment is open" in " ".join(report["remarks"])
        answer = raw(running.port, request("GET /v1/rounds/1/report.html HTTP/1.1"))
        assert status_of(answer) == 200
        url = running.client.url
        runner = CliRunner()
        shown = runner.invoke(soup, ["report", url, "1"], catch_exceptions=False).output
        assert "published: result" in shown and "anna" in shown
        checked = runner.invoke(soup, ["verify", url, "--export", str(tmp_path / "ledger")], catch_exceptions=False)
        assert checked.exit_code == 0 and "round 1: root" in checked.output
        assert runner.invoke(soup, ["verify", str(tmp_path / "ledger")], catch_exceptions=False).exit_code == 0
        (tmp_path / "ledger").write_text((tmp_path / "ledger").read_text().replace('\\"size\\":', '\\"size\\":1'))
        assert runner.invoke(soup, ["verify", str(tmp_path / "ledger")], catch_exceptions=False).exit_code == 1
        assert running.said == ["round 1 ended: 2 accepted, 0 refused, published: result"]
        fetched, words = tmp_path / "fetched", ["fetch", "1", "--server", url, "--into"]
        assert "wrote" in runner.invoke(soup, [*words, str(fetched)], catch_exceptions=False).output
        made = tmp_path / "soup/rounds/1/model"
        assert {each.name for each in made.iterdir()} == {each.name for each in fetched.iterdir()} | {"merge.json"}
        assert all(each.read_bytes() == (made / each.name).read_bytes() for each in fetched.iterdir())
        moved = shutil.copytree(base, tmp_path / "moved")
        runner.invoke(soup, [*words, str(tmp_path / "again"), "--base", str(moved)], catch_exceptions=False)
        assert Artifact.read(tmp_path / "again").base == str(moved)
        for name in ("merge.json", "..%2F..%2Fserver.pem", "none"):
            assert status_of(raw(running.port, request(f"GET /v1/rounds/1/model/{name} HTTP/1.1"))) == 404
        with pytest.raises(GymError, match="round 2 is not closed"):
            runner.invoke(soup, ["fetch", "2", *words[2:], str(tmp_path / "two")], catch_exceptions=False)
        card = (made / "README.md").read_text()
        (made / "README.md").write_text(card + "Run this: ...")
        with pytest.raises(GymError, match="not what the ledger of round 1 names"):
            runner.invoke(soup, [*words, str(tmp_path / "changed")], catch_exceptions=False)
        assert not (tmp_path / "changed").exists()
        sent: list[int] = []

        class Endless(SoupClient):
            def piece(self, number: int, name: str, begin: int) -> bytes:
                sent.append(len(sent))
                assert len(sent) < 100, "it takes whatever a server sends"
                return b"x" * 10_000

        with pytest.raises(GymError, match="not what the ledger of round 1 names"):
            fetch(Endless(url, Ed25519PrivateKey.generate()), 1, tmp_path / "changed")
        assert "README.md of the model of round 1" in runner.invoke(soup, ["verify", str(tmp_path / "soup")]).output
        (made / "README.md").write_text(card)
        status = runner.invoke(soup, ["status", "--server", url, "--member", "anna", "--key", str(tmp_path / "k")])
        assert "round 2 is open" in status.output and "anna: reputation" in status.output
    finally:
        running.stop()
    checked = CliRunner().invoke(soup, ["verify", str(tmp_path / "soup"), "--json"], catch_exceptions=False)
    assert json.loads(checked.output)["problems"] == []


def test_with_privacy_the_server_tells_nobody_what_is_not_noised(base, tmp_path):
    """The norm of a change, and its distance to the result, are enough to tell which of two it was."""
    running = Running(base, tmp_path / "soup", max_contributors=2, differential_privacy=True)
    try:
        for seed, name in enumerate(("anna", "bert")):
            client = SoupClient(running.client.url, Ed25519PrivateKey.generate(), retries=0)
            client.join(name)
            contribute(running, file_of(tmp_path / name, seed), name, client)
        until = time.monotonic() + 60
        while running.client.server()["round"]["number"] == 1 and time.monotonic() < until:
            time.sleep(0.1)
        told, kept = running.client.report(1), result(running.community, 1).report
        assert told["accepted"] == ["anna", "bert"] and told["privacy"] == kept["privacy"]
        single = [str(each[key]) for each in kept["contributors"].values() for key in ("norm", "distance", "cosine")]
        page = raw(running.port, request("GET /v1/rounds/1/report.html HTTP/1.1"))
        assert len(single) == 6 and not any(each in json.dumps(told) for each in single)
        assert (
            status_of(page) == 200
            and b"Norm of the change" not in page
            and b"Distance" not in page.partition(b"</table>")[2]
        )
        shown = CliRunner().invoke(soup, ["report", running.client.url, "1"], catch_exceptions=False).output
        assert "merged 2 of 2" in shown and "is not noised, and is kept by who runs the community" in shown
    finally:
        running.stop()


@pytest.mark.parametrize("failing", [True, False])
def test_a_round_that_cannot_end_stops_no_server_and_is_not_judged_again_at_once(failing, base, tmp_path, monkeypatch):
    """Whether the function of the operator fails, or it refuses too many: rounds go on when somebody more comes."""
    asked, broken = [], [failing]

    def evaluate(artifact: Artifact) -> float:
        asked.append(artifact)
        if broken[0]:
            raise RuntimeError("out of memory, in /srv/secret")
        return 0.1 if artifact.kind == "adapter" and not failing else 1.0

    options = {"folder": str(tmp_path / "soup"), "base_model": str(base), "min_contributors": 1}
    service = Service(SoupServerConfig(**options, contribution_window=1e-9), evaluate)
    monkeypatch.setattr("gym_deltasoup.server.service.REST", 1e6)

    def given(name: str, seed: int) -> None:
        file = file_of(tmp_path / name, seed)
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        service.community.accept(Contribution(1, name, content, file.stat().st_size, "adapter", SHAPE), file)

    given("anna", 1)
    assert not service.tick()
    count, trouble = len(asked), service.told()["round"]["trouble"]
    assert trouble == "it raised RuntimeError, as the log of the server says" if failing else "refused" in trouble
    assert not service.tick() and len(asked) == count, "nobody came meanwhile"
    assert service.told()["round"]["state"] == "open"
    broken[0] = False
    given("bert", 2)
    assert service.tick() == failing and len(asked) > count
    service.close()


def test_a_clock_that_was_set_back_makes_no_round_wait_for_years(base, tmp_path, monkeypatch):
    now, ahead = time.time(), 14 * 365 * 86400
    monkeypatch.setattr(time, "time", lambda: now + ahead)
    options = {"folder": str(tmp_path / "soup"), "base_model": str(base), "min_contributors": 1}
    service = Service(SoupServerConfig(**options, enable_rewards=False))
    file = file_of(tmp_path / "a")
    content = hashlib.sha256(file.read_bytes()).hexdigest()
    service.community.accept(Contribution(1, "anna", content, file.stat().st_size, "adapter", SHAPE), file)
    assert not service.tick(), "its window is a day"
    monkeypatch.setattr(time, "time", lambda: now)
    assert service.tick() and service.community.ledger.round().number == 2
    with service.community.ledger.writing() as rows:
        rows.execute('INSERT INTO secure_rounds VALUES (2, \'share\', ?, \'[["a", "b", "c"]]\')', (now + ahead,))
        for name in "abc":
            rows.execute("INSERT INTO secure_said VALUES (2, ?, 'advertise', '{}')", (name,))
        assert secure_steps.advance(rows, 2, now, 300) == "share"
        assert secure_steps.advance(rows, 2, now + 299, 300) == "share"
        assert secure_steps.advance(rows, 2, now + 301, 300) != "share"
    service.close()


def test_a_server_that_could_not_begin_holds_nothing(base, tmp_path, running):
    config = SoupServerConfig(folder=str(tmp_path / "other"), base_model=str(base), port=running.port)
    with pytest.raises(GymError, match="cannot listen"):
        SoupServer(config)
    torn = config.model_copy(
        update={"port": 0, "certificate": str(tmp_path / "none"), "private_key": str(tmp_path / "none")}
    )
    with pytest.raises(GymError, match="certificate"):
        SoupServer(torn)
    again = Running(base, tmp_path / "other")
    with pytest.raises(BusyError, match=r"(?s)folder: is in use by another run.*serve another folder"):
        SoupServer(config.model_copy(update={"port": 0}))
    again.stop()


def test_members_join_and_contribute_by_command(running, base, tmp_path):
    url, key = running.client.url, str(tmp_path / "key.pem")
    options = ["--server", url, "--key", key, "--member", "bert"]
    runner = CliRunner()
    assert "bert is a member since round 1" in runner.invoke(soup, ["join", *options], catch_exceptions=False).output
    trained = adapter(base, tmp_path / "trained", 3)
    told = runner.invoke(soup, ["contribute", str(trained), *options], catch_exceptions=False)
    assert "round 1 accepted it" in told.output
    with pytest.raises(GymError, match="contributed to round 1 already"):
        other = adapter(base, tmp_path / "other", 4)
        runner.invoke(soup, ["contribute", str(other), *options], catch_exceptions=False)
    with pytest.raises(GymError, match="trained from"):
        strange = adapter(tuned(base, tmp_path / "strange", 1), tmp_path / "elsewhere", 5)
        runner.invoke(soup, ["contribute", str(strange), *options], catch_exceptions=False)


def whose(proof: str) -> str:
    if not proof.startswith("card "):
        raise ValueError("this is no card")
    return proof.split()[1]


def test_enrolment_is_open_by_invitation_or_by_proof(base, tmp_path, monkeypatch):
    running = Running(base, tmp_path / "invited", enrolment="invited")
    other = SoupClient(running.client.url, Ed25519PrivateKey.generate(), retries=0)
    try:
        code = CliRunner().invoke(soup, ["invite", str(tmp_path / "invited")], catch_exceptions=False).output.strip()
        (tmp_path / "empty").mkdir()
        with pytest.raises(GymError, match="there is no ledger here"):
            CliRunner().invoke(soup, ["invite", str(tmp_path / "empty")], catch_exceptions=False)
        assert not [*(tmp_path / "empty").iterdir()], (
            "a code of no community, and a ledger in a folder of something else"
        )
        with pytest.raises(GymError, match="no invitation"):
            running.client.join("anna", "guess")
        running.client.join("anna", code)
        with pytest.raises(GymError, match="somebody used it"):
            other.join("bert", code)
    finally:
        running.stop()
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    running = Running(base, tmp_path / "proof", enrolment="proof", verify_proof="test_server:whose")
    other = SoupClient(running.client.url, Ed25519PrivateKey.generate(), retries=0)
    try:
        with pytest.raises(GymError, match="this is no card"):
            running.client.join("anna", "word")
        running.client.join("anna", "card 7 blue")
        with pytest.raises(GymError, match="is a member already"):
            other.join("bert", "card 7 red")
        other.join("bert", "card 8")
    finally:
        running.stop()


def test_limits_tokens_and_one_server_for_a_folder(base, tmp_path):
    buckets = RateLimits(2.0, 3)
    assert [buckets.wait("a", 0.0) for _ in range(4)] == [0, 0, 0, 0.5] and buckets.wait("b", 0.0) == 0
    assert buckets.wait("a", 0.25) == pytest.approx(0.25) and buckets.wait("a", 0.5) == 0
    (tmp_path / "token").write_text("a word that nobody guesses\n")
    limits = {"requests_per_second": 0.01, "burst": 4}
    running = Running(base, tmp_path / "soup", token_file=str(tmp_path / "token"), limits=limits)
    try:
        with pytest.raises(GymError, match="token is not that of this server"):
            running.client.server()
        client = SoupClient(running.client.url, running.key, "a word that nobody guesses", retries=0)
        assert client.server()["enrolment"] == "open"
        with pytest.raises(GymError, match="use by another run"):
            Running(base, tmp_path / "soup")
        client.server()
        client.server()
        answer = raw(running.port, request("GET /v1/server HTTP/1.1"))
        assert status_of(answer) == 429 and b"retry-after" in answer.lower()
    finally:
        running.stop()
    with pytest.raises(RecipeError, match="can be reached by others"):
        load_server(None, ("host=0.0.0.0", "base_model=tiny"))
    with pytest.raises(RecipeError, match="names its `base_model`"):
        load_server(None, ())


def test_a_server_listens_at_an_address_of_ipv6_or_says_why_not(base, tmp_path):
    running = Running(base, tmp_path / "soup", host="::1")
    try:
        url = running.server.url
        assert url == f"http://[::1]:{running.port}"
        assert SoupClient(url, running.key, retries=0).server()["server"] == running.community.server
        for number, (why, options) in enumerate(
            (
                (f"cannot listen at ::1, port {running.port}", {"host": "::1", "port": running.port}),
                ("certificate or its key cannot be used: No such file", {"certificate": "none", "private_key": "none"}),
            )
        ):
            with pytest.raises(GymError, match=why):
                SoupServer(SoupServerConfig(folder=str(tmp_path / f"{number}"), base_model=str(base), **options))
    finally:
        running.stop()


def test_pages_in_a_browser_of_this_machine_may_not_ask(running):
    head = "GET /v1/server HTTP/1.1"
    assert status_of(raw(running.port, request(head))) == 200
    assert status_of(raw(running.port, request(head, b"", "Origin: https://evil.example"))) == 403
    renamed = request(head).replace(b"Host: localhost", b"Host: evil.example")
    assert status_of(raw(running.port, renamed)) == 403


def test_a_storm_and_kills_lose_nothing(base, tmp_path):
    """The whole form, 200 contributors and 20 kills, is `python soup_storm.py`."""
    told = storm(base, tmp_path, contributors=10, kills=3, seconds=60)
    assert told["accepted"] == told["receipts"] == 10 and told["kills"] == 3 and told["hostile requests"]


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, {"detail": "Not Found"}),
        (404, {"error": {"message": "no"}}),
        (200, {"object": "list"}),
        (200, [1]),
        (502, 0),
    ],
)
def test_what_is_no_server_of_a_community_is_named(status, body):
    """Such as that of another port, or a proxy."""

    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            said = json.dumps(body).encode() if body else b"<html>"
            self.send_response(status)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Other) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{other.server_port}"
        client = SoupClient(url, Ed25519PrivateKey.generate(), timeout=5, retries=0)
        for asked in (client.server, lambda: client.join("anna"), lambda: client.report(1), client.ledger):
            with pytest.raises(GymError, match=f"it answered {status}, and not as the server of a community") as caught:
                asked()
            assert caught.value.problems[0].where == url
        other.shutdown()
