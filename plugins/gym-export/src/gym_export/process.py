"""Runs a comparison in a process of its own, which knows nothing of the one that wrote the artifact.

Imports take longer than most comparisons. So a server imports torch and transformers once, reads nothing else, and forks a
process for each comparison; where there is no fork, each is a new Python. Both speak JSON. The server ends with its parent.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gym_core import Artifact, GymError
from gym_core.component import construct
from gym_core.errors import Problem
from gym_export.kinds import CertifiedExporter

MODULE = "gym_export.process"
_servers: dict[int, subprocess.Popen[str]] = {}  #: by the process that started it: a forked one has to start its own


def in_fresh_process(
    config: CertifiedExporter, artifact: Artifact, path: Path, told: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what `gym_export.comparing.compared` finds in a fresh process. Raises the GymError that it raises there.

    Also where that process ends without an answer, as one that the system kills for memory.
    """
    import torch

    cls = type(config)
    with TemporaryDirectory(prefix="gym-certify-") as folder:
        answer, said = Path(folder, "answer.json"), Path(folder, "said.txt")
        request = {
            "config": f"{cls.__module__}:{cls.__qualname__}",
            "options": config.model_dump(mode="json"),
            "artifact": artifact.to_json() | {"path": str(artifact.path.resolve())},
            "path": str(path.resolve()),
            "told": dict(told),
            "threads": torch.get_num_threads(),
            "sys_path": sys.path,
            "cwd": str(Path.cwd()),
            "environment": dict(os.environ),
            "answer": str(answer),
            "said": str(said),
        }
        status = _carry_out(json.dumps(request))
        if not answer.is_file():
            last = (
                said.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:] if said.is_file() else []
            )
            why = (
                f"the process that compares the artifact ended (status {status}): {' '.join(last) or 'it said nothing'}"
            )
            raise GymError(why[:400], where=str(path), fix="see that there is memory for the model twice")
        found: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
    if "problems" in found:
        raise GymError([Problem(**problem) for problem in found["problems"]])
    return found


def _carry_out(request: str) -> int:
    """Have a request carried out; return the exit status of the process that did."""
    if not hasattr(os, "fork"):
        return subprocess.run(
            [sys.executable, "-m", MODULE, "--once"], input=request, text=True, check=False
        ).returncode
    for _ in range(2):  # a server that was killed is started again
        server = _servers.get(os.getpid())
        if server is None or server.poll() is not None:
            server = _servers[os.getpid()] = _started()
        assert server.stdin is not None and server.stdout is not None
        try:
            server.stdin.write(request + "\n")
            server.stdin.flush()
            if line := server.stdout.readline():
                return int(line)
        except BrokenPipeError:
            continue
    return -1


def _started() -> subprocess.Popen[str]:
    command, pipe = [sys.executable, "-m", MODULE], subprocess.PIPE
    server = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True)
    atexit.register(_end, server, os.getpid())
    return server


def _end(server: subprocess.Popen[str], started_by: int) -> None:
    """End a server with whatever it still compares: nobody waits for that any more."""
    if os.getpid() == started_by:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.communicate()


def carry_out(request: Mapping[str, Any]) -> None:
    """Compare, in a fresh process, and write the answer down."""
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    sys.path[:] = request["sys_path"]
    import torch

    torch.set_num_threads(request["threads"])
    try:
        from gym_export.comparing import compared
        from gym_export.source import Source

        config: Any = construct(request["config"], **request["options"])
        told = request["artifact"]
        artifact = Artifact(**{**told, "path": Path(told["path"])})
        with Source(artifact) as source, torch.no_grad():
            found = compared(construct(config.format, config), source, Path(request["path"]), request["told"])
    except GymError as error:
        found = {"problems": [problem.to_json() for problem in error.problems]}
    answer = Path(request["answer"])
    answer.with_suffix(".part").write_text(json.dumps(found), encoding="utf-8")
    answer.with_suffix(".part").replace(answer)


def _forked(line: str, out: int) -> int:
    """Carry out a request in a fork; return its exit status."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    status = 1
    try:
        request = json.loads(line)
        said = os.open(request["said"], os.O_WRONLY | os.O_CREAT, 0o600)
        for number in (1, 2):
            os.dup2(said, number)
        os.close(out)
        carry_out(request)
        status = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def main() -> None:
    """Serve requests until stdin ends; with `--once`, carry out the one on stdin."""
    if "--once" in sys.argv:
        carry_out(json.loads(sys.stdin.read()))
        return
    out = os.dup(1)
    os.dup2(2, 1)  # nothing that a library prints is taken for an answer
    import gym_export.comparing  # noqa: F401 - so that no fork has to

    with suppress(BrokenPipeError):  # who asked has ended meanwhile
        for line in sys.stdin:
            os.write(out, f"{_forked(line, out)}\n".encode())


if __name__ == "__main__":
    main()
