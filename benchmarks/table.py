"""Run every benchmark and print one table of its checks. Arguments are handed on: `--quick`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
#: Which need an environment of its own, as `nox -s gptq` and `nox -s vllm` make, an accelerator, or a checkout of another tool.
NEEDY = {"gptq.py", "served.py", "gpu.py", "axolotl_files.py"} | {
    f"llamafactory_{name}.py" for name in ("data", "files", "losses")
}
OTHERS = {"choosing_page.py", "learning.py", "report.py", "table.py", "unlearning.py", "workers.py"} | NEEDY


def run() -> int:
    """Run the scripts one after another; return 1 when a check of any does not hold."""
    table = Table("benchmark", "check", "value", "target", "holds")
    failed = 0
    for script in sorted(path for path in HERE.glob("*.py") if path.name not in OTHERS):
        done = subprocess.run(
            [sys.executable, str(script), "--json", *sys.argv[1:]], capture_output=True, text=True, check=False
        )
        lines = done.stdout.strip().splitlines()
        checks = json.loads(lines[-1])["checks"] if lines else []
        if not checks:
            table.add_row(script.stem, "did not run", done.stderr.strip().splitlines()[-1][:60], "", "[red]no")
        for check in checks:
            holds = "[green]yes" if check["holds"] else "[red]no"
            table.add_row(script.stem, check["name"], f"{check['value']:g}", check["target"], holds)
        failed |= done.returncode != 0
    Console().print(table)
    return int(failed)


if __name__ == "__main__":
    sys.exit(run())
