"""A storm over a community server: many contributors at once, broken connections, hostile bodies, and kills.

As a script it prints what became of it: `python soup_storm.py --contributors 200 --kills 20`.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import multiprocessing
import os
import random
import signal
import socket
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from safetensors.torch import save_file
from soup_models import LAYER

from gym_adapters.lora_checkpoint import PREFIX
from gym_core import GymError
from gym_deltasoup.client.client import SoupClient
from gym_deltasoup.config.server import ServerLimits, SoupServerConfig
from gym_deltasoup.ledger.ledger import Ledger
from gym_deltasoup.ledger.signatures import message, signed
from gym_deltasoup.ledger.verify import verify
from gym_deltasoup.rounds.base import Base
from gym_deltasoup.rounds.verify_files import verify_files
from gym_deltasoup.server.serve import SoupServer

CHUNK = 512


def nursery(pipe: Connection, config: SoupServerConfig) -> None:
    """Fork servers when asked: `start` and `kill`; it has one thread, so nothing is held at a fork."""
    torch.set_num_threads(1)
    pid, deaths = 0, 0
    while (asked := pipe.recv()) != "end":
        if asked == "start":
            pid = os.fork()
            if pid == 0:
                try:
                    SoupServer(config).run()
                finally:
                    os._exit(1)
        elif asked == "kill":
            ended, _ = os.waitpid(pid, os.WNOHANG)
            deaths += ended == pid  # it died by itself
            if not ended:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        pipe.send(deaths)


@dataclass
class Storm:
    """What is to happen, and what did."""

    folder: Path
    config: SoupServerConfig
    seconds: float
    base: str = ""  #: fingerprint
    receipts: dict[str, tuple[int, str]] = field(default_factory=dict)  #: by member: the event that accepted it
    repeated: int = 0
    hostile: int = 0
    answers: dict[int, int] = field(default_factory=dict)  #: to hostile requests, by status
    lost: list[str] = field(default_factory=list)
    turn: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.config.port}"

    def contributor(self, number: int) -> None:
        """Contribute until it is accepted, with broken connections on the way; then once more, which changes nothing."""
        draw, name = random.Random(number), f"user-{number:03}"
        file = self.folder / f"{name}.safetensors"
        drawn = torch.Generator().manual_seed(number)
        halves = {"A": torch.randn(2, 32, generator=drawn), "B": torch.randn(32, 2, generator=drawn)}
        save_file({f"{PREFIX}{LAYER}.lora_{half}.weight": 0.1 * each for half, each in halves.items()}, file)
        key = Ed25519PrivateKey.generate()
        client = SoupClient(self.url, key, timeout=10, retries=0)
        deadline = time.monotonic() + self.seconds
        joined = False
        while time.monotonic() < deadline:
            try:
                if not joined:
                    client.join(name)
                    joined = True
                if draw.random() < 0.5:
                    self.break_off(client, name, file, self.base, draw)
                event = client.contribute(name, file, "adapter", {"rank": 2, "alpha": 4.0}, self.base)
            except GymError as error:
                if "does not answer" not in str(error) and "answered" not in str(error):
                    self.lost.append(f"{name}: {error}")
                    return
                time.sleep(draw.uniform(0.05, 0.4))
                continue
            with self.turn:
                before = self.receipts.setdefault(name, (event.number, event.hash))
                self.repeated += before == (event.number, event.hash)
            if before != (event.number, event.hash):
                self.lost.append(f"{name} was accepted twice")
            if draw.random() < 0.5:
                return
        if name not in self.receipts:
            self.lost.append(f"{name}: no time left")

    def break_off(self, client: SoupClient, name: str, file: Path, base: str, draw: random.Random) -> None:
        """Begin an upload, send half of a part, and go away."""
        manifest = manifest_of(client, name, file, base)
        told = post(client, "/v1/contributions", manifest)
        if told is None or "upload" not in told:
            return
        part = file.read_bytes()[told["received"] :][:CHUNK]
        head = [
            f"PATCH /v1/uploads/{told['upload']} HTTP/1.1",
            "Host: localhost",
            f"Upload-Offset: {told['received']}",
            f"Content-Length: {len(part)}",
            f"Content-Digest: sha-256=:{base64.b64encode(hashlib.sha256(part).digest()).decode()}:",
        ]
        raw(
            self.config.port,
            "\r\n".join(head).encode() + b"\r\n\r\n" + part[: draw.randrange(len(part) or 1)],
            wait=False,
        )

    def attacker(self, number: int, over: threading.Event) -> None:
        """Send what no server should fall over."""
        draw = random.Random(-number)
        while not over.is_set():
            answer = raw(self.config.port, draw.choice(HOSTILE)(draw))
            with self.turn:
                self.hostile += 1
                if answer.startswith(b"HTTP/1.1 "):
                    status = int(answer[9:12])
                    self.answers[status] = self.answers.get(status, 0) + 1
            time.sleep(draw.uniform(0.01, 0.1))


def request(line: str, body: bytes = b"", *headers: str) -> bytes:
    head = [line, "Host: localhost", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


POST = "POST /v1/contributions HTTP/1.1"
HOSTILE = [
    lambda draw: draw.randbytes(draw.randrange(2000)),
    lambda draw: request(POST, b"[" * 60_000),
    lambda draw: request(POST, b'{"manifest": NaN, "signature": 1e999}'),
    lambda draw: request(POST, b'{"manifest": {"member": "\\ud800"}, "signature": ""}'),
    lambda draw: request(POST, draw.randbytes(500)),
    lambda draw: request("POST /v1/members HTTP/1.1", b"x" * 100_000),
    lambda draw: f"{POST}\r\nHost: localhost\r\nContent-Length: 99999999999999\r\n\r\n".encode(),
    lambda draw: f"{POST}\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nfffffff\r\n".encode() + b"z" * 90_000,
    lambda draw: f"{POST}\r\nHost: localhost\r\nContent-Length: 50\r\n\r\nhalf".encode(),
    lambda draw: request("PATCH /v1/uploads/none HTTP/1.1", b"x", "Upload-Offset: -1"),
    lambda draw: request("PATCH /v1/uploads/none HTTP/1.1", b"x" * 4096, "Upload-Offset: 0"),
    lambda draw: request("GET /v1/rounds/99999999999999999999999/report HTTP/1.1"),
    lambda draw: request("GET /v1/ledger?after=" + "9" * 30 + " HTTP/1.1"),
    lambda draw: request("GET /../../etc/passwd HTTP/1.1"),
    lambda draw: request("GET /" + "a" * 20_000 + " HTTP/1.1"),
    lambda draw: b"GET /v1/server HTTP/1.1\r\nHost: localhost\r\nX: ",
]


def raw(port: int, data: bytes, wait: bool = True) -> bytes:
    """Send bytes and return the answer; nothing where there is none."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=3) as connection:
        connection.settimeout(1.0)
        with suppress(OSError):
            connection.sendall(data)
        return _answer(connection) if wait else b""
    return b""


def _answer(connection: socket.socket) -> bytes:
    """Read an answer as far as it says that it goes."""
    read = b""
    with suppress(TimeoutError):
        while part := connection.recv(4096):
            read += part
            head, end, body = read.partition(b"\r\n\r\n")
            lengths = [
                line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")
            ]
            if end and lengths and len(body) >= int(lengths[0]):
                break
    return read


def manifest_of(client: SoupClient, name: str, file: Path, base: str, /, **changed: Any) -> dict[str, Any]:
    """Return a signed manifest, with something changed before it is signed."""
    told = client.server()
    manifest = {
        "server": told["server"],
        "round": told["round"]["number"],
        "base": base,
        "member": name,
        "content": hashlib.sha256(file.read_bytes()).hexdigest(),
        "size": file.stat().st_size,
        "kind": "adapter",
        "details": {"rank": 2, "alpha": 4.0},
        "time": time.time(),
    } | changed
    return {"manifest": manifest, "signature": signed(client.key, message("contribution", manifest))}


def post(client: SoupClient, path: str, data: Any) -> dict[str, Any] | None:
    """Post JSON, and return the answer; None where none came."""
    answer = raw(int(client.url.rpartition(":")[2]), request(f"POST {path} HTTP/1.1", json.dumps(data).encode()))
    with suppress(ValueError):
        return json.loads(answer.partition(b"\r\n\r\n")[2])
    return None


def storm(base: Path, folder: Path, contributors: int, kills: int, seconds: float, seed: int = 0) -> dict[str, Any]:
    """Let it happen, and return what was found. Raises AssertionError where anything was lost or counted twice."""
    folder.mkdir(parents=True, exist_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    limits = ServerLimits(
        chunk_bytes=CHUNK, contribution_bytes=1 << 16, free_bytes=0, requests_per_second=1e6, burst=10**6,
        header_seconds=2, body_seconds=2,
    )  # fmt: skip
    config = SoupServerConfig(folder=str(folder / "soup"), base_model=str(base), port=port, limits=limits)
    made = Storm(folder, config, seconds)
    made.base = Base(str(base)).fingerprint
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=nursery, args=(theirs, config))
    child.start()
    draw, over, began = random.Random(seed), threading.Event(), time.monotonic()

    def ask(what: str) -> int:
        ours.send(what)
        return int(ours.recv())

    ask("start")
    attackers = [threading.Thread(target=made.attacker, args=(number, over)) for number in range(4)]
    for each in attackers:
        each.start()
    done = 0
    with ThreadPoolExecutor(contributors) as pool:
        waiting = [pool.submit(made.contributor, number) for number in range(contributors)]
        while not all(each.done() for each in waiting) or done < kills:
            time.sleep(draw.uniform(0.3, 1.5))
            if done < kills:
                ask("kill")
                ask("start")
                done += 1
        for each in waiting:
            each.result()
    over.set()
    for each in attackers:
        each.join()
    deaths = ask("kill")
    ours.send("end")
    child.join()
    return found(made, contributors, done, deaths, time.monotonic() - began)


def found(made: Storm, contributors: int, kills: int, deaths: int, seconds: float) -> dict[str, Any]:
    """Compare what the contributors were told with what the ledger holds."""
    folder = Path(made.config.folder)
    ledger = Ledger(folder)
    events = [*ledger.every_event()]
    accepted = {each.data["member"]: (each.number, each.hash) for each in events if each.data["event"] == "accepted"}
    rows = ledger.contributions(1)
    ledger.close()
    checked = verify(ledger_server(folder), events)
    assert not made.lost, made.lost[:5]
    assert deaths == 0, "a server died by itself"
    assert not [status for status in made.answers if status >= 500], made.answers
    assert not checked.problems and checked.accepted == len(accepted), checked.problems
    assert not verify_files(folder, events)
    assert made.receipts == accepted and len(rows) == len(accepted) == contributors
    return {
        "contributors": contributors,
        "accepted": len(accepted),
        "receipts": len(made.receipts),
        "kills": kills,
        "repeated": made.repeated - len(accepted),
        "hostile requests": made.hostile,
        "answers": dict(sorted(made.answers.items())),
        "server died": deaths,
        "seconds": round(seconds, 1),
    }


def ledger_server(folder: Path) -> str:
    ledger = Ledger(folder)
    try:
        return str(ledger.identity("server"))
    finally:
        ledger.close()


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--contributors", type=int, default=200)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=900.0)
    said = parser.parse_args()
    from gym_testkit.bench import Bench

    with tempfile.TemporaryDirectory() as folder:
        os.environ["GYM_CACHE"] = f"{folder}/cache"
        base = Bench(Path(folder)).model()
        print(json.dumps(storm(base, Path(folder) / "storm", said.contributors, said.kills, said.seconds)))


if __name__ == "__main__":
    sys.exit(main())
