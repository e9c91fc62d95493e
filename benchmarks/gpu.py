"""Training and decoding on one GPU beside TRL, LLaMA-Factory and unsloth: tokens/s, model FLOP utilisation and peak memory.

Models of 0.6B and 7B with made-up weights are trained whole, by LoRA, by QLoRA and by GRPO, in bf16, by all that are
installed, each in a process of its own and in its best known form: packed rows, and FlashAttention and the kernels of Liger
where those are installed. Gym also compiles its layers and multiplies in fp8; GRPO is answered by vLLM too where that is
installed; decoding is measured by itself. Utilisation is against the machine's own rate of matrix products in bf16, and counts
nothing that is computed again, as layers are at 7B. What does not fit into memory, and a peer that fails, is said so.

Every run is a figure by itself, `SIZE WAY PEER`: it is written into `--into FILE` as soon as it is there, and not measured
again by a later call with that file. `--only "0.6B lora"` (more than once) measures those whose names begin so, `--minutes 9`
begins no run that may end later, `--list` says what there is. `GYM_DATA` names the folder of the text. `--quick` leaves 7B out.
Without a GPU nothing is measured, and the exit code is 77; `--miniature` tries every worker that is installed, with a tiny
model, on a CPU too.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import report
import torch
from peers.gpu_runs import DATA, FOLDER, LONGEST, SMALL, Bench, Figures, Scale, free_memory, say
from peers.process import accelerated
from peers.sizes import Case, cases

NO_GPU = 77  #: exit code, as others say that a test was skipped
FASTER, USED = 1.5, 0.46  #: targets: times LLaMA-Factory with FlashAttention; utilisation at 7B


def matmul_rate(size: int = 8192) -> float:
    """Return the FLOP/s of the device's own matrix products in bf16, the best of a few."""
    device = "cuda" if accelerated() else "cpu"
    left, right = (torch.randn(size, size, dtype=torch.bfloat16, device=device) for _ in range(2))
    times = []
    for _ in range(12):
        began = time.perf_counter()
        float((left @ right)[0, 0])  # reading a number waits for the device
        times.append(time.perf_counter() - began)
    del left, right
    free_memory()
    return 2 * size**3 / min(times)


def chosen(planned: list[Case], only: list[str]) -> Iterator[tuple[Case, str]]:
    """Yield the runs whose names begin as one of `only` says; all without any."""
    for case in planned:
        for peer in case.peers:
            name = f"{case.size} {case.way} {peer}"
            if not only or any(f"{name} ".startswith(f"{start} ") for start in only):
                yield case, peer


def measure(bench: Bench, runs: list[tuple[Case, str]], into: Path | None, ends: float) -> Figures:
    """Measure runs one after another; return their figures, those that `into` has included, by name."""
    found: Figures = json.loads(into.read_text(encoding="utf-8")) if into and into.exists() else {}
    for case, peer in runs:
        name = f"{case.size} {case.way} {peer}"
        if type(found.get(name)) is dict:
            continue
        if time.monotonic() + LONGEST > ends:
            say(f"{name}: not begun, for it may not end in time")
            continue
        began = time.monotonic()
        try:
            found[name] = bench.run(case, peer)
        except SystemExit as error:  # of a peer that failed in its process
            say(str(error))
            found[name] = " ".join(str(error).strip().splitlines()[-2:])[-400:]
        say(f"{name}: {json.dumps(found[name])}, {time.monotonic() - began:.0f} s")
        if into:
            into.write_text(json.dumps(found, indent=2), encoding="utf-8")
    return found


def check(out: report.Report, found: Figures) -> None:
    """Hold what was measured to the targets; Gym must not fail."""
    for name, ours in found.items():
        size, way, peer = name.split(" ", 2)
        if not peer.startswith("gym"):
            continue
        out.check(f"{name}: runs", float(type(ours) is dict), at_least=1)
        theirs = found.get(f"{size} {way} llamafactory")
        if type(ours) is dict and type(theirs) is dict:
            ratio = ours["tokens_per_second"] / theirs["tokens_per_second"]
            out.check(f"{name} / LLaMA-Factory, tokens/s", round(ratio, 2), at_least=FASTER)
        if type(ours) is dict and (size, way) == ("7B", "full") and peer != "gym fp8":
            out.check(f"{name}: model FLOP utilisation", ours["model_flop_utilisation"], at_least=USED)


def main() -> int:
    """Measure what the command line asks for; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the object alone")
    parser.add_argument("--quick", action="store_true", help="leave 7B out")
    parser.add_argument("--miniature", action="store_true", help="try every worker with a tiny model, on a CPU too")
    parser.add_argument("--list", action="store_true", help="print the names of the runs")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="runs whose names begin so")
    parser.add_argument("--into", type=Path, metavar="FILE", help="figures, kept from call to call")
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no run that may end later")
    asked = parser.parse_args()
    ends = time.monotonic() + 60 * asked.minutes

    if not accelerated() and not asked.miniature:
        say("there is no GPU here: nothing was measured")
        return NO_GPU
    if not any(FOLDER.glob(f"{DATA}.*")):
        say(f"there is no {DATA} in {FOLDER}: set GYM_DATA to a folder that has it")
        return 1
    out = report.Report()
    rate = matmul_rate(256 if asked.miniature else 8192)
    out.figures["device"] = {"bf16_tflops": rate / 1e12, **(_device() if accelerated() else {})}
    say(json.dumps(out.figures["device"]))
    planned = list(cases(out.figures["device"].get("free_bytes", 0), asked.quick))
    if asked.miniature:
        planned = [replace(case, size="miniature") for case in cases(float("inf"), quick=True)]
    out.figures["left out"] = {f"{case.size} {case.way}": case.left_out for case in planned if case.left_out}
    runs = list(chosen(planned, asked.only))
    if asked.list:
        print("\n".join(f"{case.size} {case.way} {peer}" for case, peer in runs))
        return 0
    scratch = Path(tempfile.gettempdir()) / f"gym-gpu-{os.getuid()}"
    scratch.mkdir(mode=0o700, exist_ok=True)
    bench = Bench(scratch, rate, SMALL if asked.miniature else Scale())
    found = measure(bench, runs, asked.into, ends)
    out.figures |= found
    check(out, found)
    print(json.dumps({"machine": report.machine(), **asdict(out)}, indent=None if asked.json else 2))
    return 0 if all(each["holds"] for each in out.checks) else 1


def _device() -> Figures:
    free, whole = torch.cuda.mem_get_info()
    return {"name": torch.cuda.get_device_name(), "gib": round(whole / 2**30), "free_bytes": free}


if __name__ == "__main__":
    sys.exit(main())
