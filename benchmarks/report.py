"""What every benchmark prints: one object with machine, figures and checks; exit code 1 when a check does not hold."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any


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
    """Describe this machine without naming it."""
    return {
        "system": platform.system(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
    }


Measure = Callable[[Report, bool], None]


def main(measure: Measure, doc: str, **parts: Measure) -> None:
    """Run a benchmark: `measure(report, quick)` fills the report. A part by name is run by itself with `--NAME`."""
    parser = argparse.ArgumentParser(description=doc.strip().splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the object alone")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, same checks")
    parser.set_defaults(parts=None)
    for name, part in parts.items():
        parser.add_argument(
            f"--{name}", action="append_const", const=part, dest="parts", help=f"the part `{name}` alone"
        )
    options = parser.parse_args()
    report = Report()
    for part in options.parts or [measure]:
        part(report, options.quick)
    print(json.dumps({"machine": machine(), **asdict(report)}, indent=None if options.json else 2))
    sys.exit(0 if all(check["holds"] for check in report.checks) else 1)
