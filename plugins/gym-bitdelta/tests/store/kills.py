"""Writers of one store that are killed, in processes without torch.

`python kills.py random ROOT KILLS WRITERS SEED` kills writers at random moments; `python kills.py lines ROOT EVERY` kills one
at every (EVERY-th) line that it executes while it creates, updates, evaluates and removes. Both print a JSON object.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from gym_bitdelta import store as package
from gym_bitdelta.store import VariantStore
from gym_core import Artifact, GymError, files

FILES = {"delta.safetensors": 40_000, "artifact.json": 60, "tokenizer/added.json": 900}
CODE = (str(Path(package.__file__).parent), files.__file__)
GONE = "none"  #: stands for no variant in a log


def content(token: str, name: str) -> bytes:
    """Return what a file of a variant holds. `artifact.json` is the same for all, as files of many users are."""
    seed = hashlib.sha256(name.encode() if name == "artifact.json" else f"{token}/{name}".encode()).digest()
    return seed * (FILES[name] // len(seed) + 1)


def artifact(folder: Path, token: str) -> Artifact:
    """Write an artifact."""
    for name in FILES:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content(token, name))
    return Artifact(folder, "delta", "a-base", {"token": token})


def state(store: VariantStore, user: str, shared: bool = False) -> str:
    """Return the token of a user's variant after all its files were compared, or `none`. Others may write a `shared` one."""
    if not any(each.user == user for each in store.listing().variants):
        return GONE
    with store.open(user) as found:
        token = found.artifact.details["token"]
        held = {path.relative_to(found.path).as_posix() for path in found.path.rglob("*") if path.is_file()}
        assert held == FILES.keys(), f"{user} has {held}"
        for name in FILES:
            assert (found.path / name).read_bytes() == content(token, name), f"{user}: {name} is of another version"
    newest = store.lineage(user)[-1].artifact["details"]["token"]
    assert shared or newest == token, f"{user} ends with {newest}, and was opened as {token}"
    return token


class Log:
    """What a writer was about to do and what it had done, a line each; a kill loses none."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self.may: dict[str, set[str]] = {}
        for line in path.read_text().splitlines():
            self._learn(*line.split())

    def write(self, what: str, user: str, token: str) -> None:
        os.write(self._file, f"{what} {user} {token}\n".encode())
        self._learn(what, user, token)

    def _learn(self, what: str, user: str, token: str) -> None:
        """After `begins` both states may be found, after `done` the new one alone."""
        before = self.may.get(user, {GONE}) if what == "begins" else set()
        self.may[user] = before | {token}


def write_forever(root: Path, number: int, seed: int) -> None:
    """Check what the last process of this number left, and go on."""
    draws = random.Random(seed)
    log = Log(root / f"log-{number}")
    users = [f"writer-{number}-user-{each}" for each in range(3)]
    with VariantStore(root / "store") as store:
        now = {user: check(store, log, user) for user in users}
        while True:
            user = draws.choice(users)
            token = f"{draws.getrandbits(60):x}"
            source = root / f"source-{number}" / token
            if now[user] == GONE:
                step = partial(store.create, user, artifact(source, token))
            elif draws.random() < 0.7:
                step = partial(store.update, user, artifact(source, token), quality={"loss": 1.0})
            else:
                token, step = GONE, partial(store.remove, user)
            log.write("begins", user, token)
            step()
            log.write("done", user, token)
            now[user] = token
            files.remove(source)
            everybody(store, draws, root / f"source-{number}" / "all")
            if draws.random() < 0.05:
                store.gc()


def everybody(store: VariantStore, draws: random.Random, source: Path) -> None:
    """Write and read what all writers write at the same time."""
    user = draws.choice(["shared-0", "shared-1"])
    try:
        if draws.random() < 0.2:
            store.remove(user)
        else:
            token = f"{draws.getrandbits(60):x}"
            known = any(each.user == user for each in store.listing().variants)
            (store.update if known else store.create)(user, artifact(source, token))
        state(store, user, shared=True)
    except GymError as error:
        if "there is no variant of" not in str(error) and "already" not in str(error):
            raise


def check(store: VariantStore, log: Log, user: str) -> str:
    """Return the state of a user, which must be one that the log allows, and note it."""
    found = state(store, user)
    allowed = log.may.get(user, {GONE})
    assert found in allowed, f"{user} is {found}, and may be {allowed}"
    log.write("done", user, found)
    return found


def forked(body: Callable[[], None]) -> int:
    """Run something in a process of its own, which ends with 0 where it raises nothing; return its number."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        body()
        status = 0
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    os._exit(status)


def randomly(root: Path, kills: int, count: int, seed: int) -> dict[str, int]:
    """Kill writers at random moments; return what was there in the end."""
    draws, done = random.Random(seed), 0

    def start(number: int) -> int:
        own = draws.getrandbits(32)
        return forked(lambda: write_forever(root, number, own))

    def killed(number: int) -> bool:
        """Kill a writer; return whether it was still at work."""
        process = writers.pop(number)
        os.kill(process, signal.SIGKILL)
        return os.WIFSIGNALED(os.waitpid(process, 0)[1])

    writers = {number: start(number) for number in range(count)}
    try:
        while done < kills:
            time.sleep(draws.uniform(0.0, 0.12))
            number = draws.randrange(count)
            assert killed(number), f"writer {number} found something wrong"
            done += 1
            if done < kills:
                writers[number] = start(number)
    finally:
        at_work = [killed(number) for number in list(writers)]
    assert all(at_work), "a writer found something wrong"
    with VariantStore(root / "store") as store:
        operations = 0
        for number in range(count):
            log = Log(root / f"log-{number}")
            operations += (root / f"log-{number}").read_text().count("done")
            for user in list(log.may):
                check(store, log, user)
        left = store.gc()
        return {"kills": done, "operations": operations, "left": left.files, "dead": left.processes, **sound(store)}


def sound(store: VariantStore) -> dict[str, int]:
    """Return what there is after everything was verified; there is no file too many."""
    found = store.listing()
    assert not found.damaged and not store.problems()
    for each in found.variants:
        store.verify(each.user)
    held = {file.sha256 for each in found.variants for file in each.files}
    there = {path.parent.name + path.name for path in (store.root / "files").glob("??/*")}
    assert held == there, f"{len(there - held)} files too many, {len(held - there)} too few"
    return {"variants": len(found.variants), "files": len(there)}


def dying(body: Callable[[], object], at: int) -> Callable[[], None]:
    """Return something that does `body` and kills itself at the `at`-th line of the store's code; 0 writes how many there are."""

    def run() -> None:
        lines = 0

        def trace(frame, event, argument):
            nonlocal lines
            if not frame.f_code.co_filename.startswith(CODE):
                return None
            if event == "line":
                lines += 1
                if lines == at:
                    os.kill(os.getpid(), signal.SIGKILL)
            return trace

        sys.settrace(trace)
        try:
            body()
        finally:
            sys.settrace(None)
        if at == 0:
            Path("lines").write_text(str(lines))

    return run


def at_lines(root: Path, every: int) -> dict[str, int]:
    """Kill a writer at lines of each of its operations; after each the variant is the one before or the one after, whole."""
    root.mkdir(exist_ok=True)
    os.chdir(root)
    path, user = root / "store", "ann"
    before, after = artifact(root / "before", "before"), artifact(root / "after", "after")
    with VariantStore(path) as store:
        store.create("other", artifact(root / "other", "other"))

    def opened(step: Callable[[VariantStore], object]) -> Callable[[], None]:
        def body() -> None:
            with VariantStore(path) as store:
                step(store)

        return body

    first = root / "first"
    steps = {
        "found": (GONE, "other", lambda: VariantStore(first).create("other", artifact(root / "other", "other"))),
        "create": (GONE, "after", opened(lambda store: store.create(user, after))),
        "update": ("before", "after", opened(lambda store: store.update(user, after))),
        "evaluated": ("before", "before", opened(lambda store: store.evaluated(user, {"loss": 1.0}))),
        "remove": ("before", GONE, opened(lambda store: store.remove(user))),
        "gc": ("before", "before", opened(lambda store: store.gc())),
    }
    found = {}
    for name, (old, new, step) in steps.items():
        where, who = (first, "other") if name == "found" else (path, user)

        def prepare(old: str = old, where: Path = where, who: str = who) -> None:
            if where == first:
                files.remove(first)
                return
            with VariantStore(where) as store:
                if state(store, who) != GONE:
                    store.remove(who)
                if old != GONE:
                    store.create(who, before)
                    junk = where / "files" / "00" / ("0" * 62)
                    junk.parent.mkdir(exist_ok=True)
                    junk.write_bytes(b"what a killed writer left")

        prepare()
        assert os.waitpid(forked(dying(step, 0)), 0)[1] == 0
        total = int(Path("lines").read_text())
        found[name] = total
        for line in range(1 + every // 2, total + 1, every):
            prepare()
            status = os.waitpid(forked(dying(step, line)), 0)[1]
            # folders that are there since the count save a few lines
            assert os.WIFSIGNALED(status) or (status == 0 and line > 0.95 * total), f"{name} ended before line {line}"
            with VariantStore(where) as store:
                assert state(store, who) in {old, new}, f"{name}, line {line}"
                store.gc()
                sound(store)
                assert state(store, who) in {old, new}, f"{name}, line {line}, after gc"
                assert len(list((where / "open").glob("*"))) <= 1, f"{name}, line {line}"
    return found


if __name__ == "__main__":
    mode, place, *numbers = sys.argv[1:]
    run = {"random": randomly, "lines": at_lines}[mode]
    print(json.dumps(run(Path(place).absolute(), *map(int, numbers))))
