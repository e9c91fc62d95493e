"""What every benchmark prints: one object with machine, figures and checks; exit code 1 when a check does not hold."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

#: What decides how fast matrices are multiplied, as Linux names it.
INSTRUCTIONS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "amx_int8")
#: With `--instructions`: what holds torch, its libraries and the kernels of Gym, so all peers, to those of an older processor.
HELD = {"avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}}


@dataclass
class Report:
    """Figures measured and the targets they are held to."""

    figures: dict[str, Any] = field(default_factory=dict)
    checks: list[dict[str, Any]] = field(default_factory=list)

    def check(self, name: str, value: float, at_most: float | None = None, at_least: float | None = None) -> None:
        """Hold a figure to a bound, and say so at once: a whole script takes minutes."""
        holds = (at_most is None or value <= at_most) and (at_least is None or value >= at_least)
        target = f"<= {at_most:g}" if at_most is not None else f">= {at_least:g}"
        self.checks.append({"name": name, "value": value, "target": target, "holds": holds})
        print(f"{name}: {value:g}, target {target}{'' if holds else ', missed'}", file=sys.stderr, flush=True)


def machine() -> dict[str, Any]:
    """Describe this machine without naming it: figures of two kinds of machines are not to be compared."""
    return {
        "system": platform.system(),
        "machine": platform.machine(),
        "instructions": [flag for flag in INSTRUCTIONS if flag in _flags()],
        "held_to": os.environ.get("ATEN_CPU_CAPABILITY"),
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
    }


def _flags() -> set[str]:
    """Return what the processor says that it has; nothing where the system does not tell."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return next((set(line.split(":")[1].split()) for line in lines if line.startswith("flags")), set())


def matmul_rate(precision: str) -> float:
    """Return the FLOP/s of this machine's own matrix products in `fp32` or `bf16`, the best of a second and of what torch has.

    A tenth of a second was found to lie within a pause of a processor that others use too: half of the rate.
    """
    import torch

    from gym_torch.kernels import onednn_linear

    kind = torch.bfloat16 if precision == "bf16" else torch.float32
    left, right = (torch.randn(1024, 1024, dtype=kind) for _ in range(2))
    other = precision == "fp32" and onednn_linear.functions()
    libraries = [torch.matmul, onednn_linear.laid_out] if other else [torch.matmul]
    best, end = float("inf"), time.perf_counter() + 1
    while time.perf_counter() < end:
        for product in libraries:
            began = time.perf_counter()
            product(left, right)
            best = min(best, time.perf_counter() - began)
    return 2 * 1024**3 / best


def _rates() -> dict[str, Any]:
    """Return the rate of matrix products in both precisions, in GFLOP/s, of a script that has torch loaded."""
    if "torch" not in sys.modules:
        return {}
    return {"matmul_gflops": {kind: round(matmul_rate(kind) / 1e9, 1) for kind in ("fp32", "bf16")}}


Measure = Callable[[Report, bool], None]


def main(measure: Measure, doc: str, **parts: Measure) -> None:
    """Run a benchmark: `measure(report, quick)` fills the report. A part by name is run by itself with `--NAME`."""
    parser = argparse.ArgumentParser(description=doc.strip().splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the object alone")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, same checks")
    parser.add_argument("--instructions", choices=HELD, help="use no more than these, as an older processor would")
    parser.set_defaults(parts=None)
    for name, part in parts.items():
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, action="append_const", const=part, dest="parts", help=f"the part `{name}` alone")
    options = parser.parse_args()
    held = HELD.get(options.instructions, {})
    if os.environ.items() < os.environ.items() | held.items():  # libraries read it when they are loaded
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | held)
    report, before = Report(), os.getloadavg()[0]
    for part in options.parts or [measure]:
        part(report, options.quick)
    told = machine() | _rates() | {"load": {"before": round(before, 1), "after": round(os.getloadavg()[0], 1)}}
    print(json.dumps({"machine": told, **asdict(report)}, indent=None if options.json else 2))
    sys.exit(0 if all(check["holds"] for check in report.checks) else 1)
