"""What a recipe means, asked in a process of its own: `python -m gym_webui.recipe_report FILE`. Plugins are imported here.

It prints one JSON object: `written`, the data of the file; `sections`, the same in the form of Gym's recipes; `canonical`, every
value that it sets; and `problems`, those of `gym validate`.
"""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from gym_core import dialect
from gym_core.errors import GymError
from gym_core.hooks import manager_for
from gym_core.recipe import load_recipe
from gym_core.sections import Findings
from gym_core.yamlfile import read_yaml


def report(file: Path) -> dict[str, Any]:
    """Return what a file means."""
    told: dict[str, Any] = {"written": {}, "sections": {}, "canonical": {}, "problems": []}
    try:
        data, marks = read_yaml(file)
        told["written"] = data
        told["sections"] = dialect.translate(data, Findings(marks, folder=file.parent))
        recipe = load_recipe(file)
        told["canonical"] = recipe.canonical()
        recipe.check()
        manager_for(recipe.hooks)
    except GymError as error:
        told["problems"] = [problem.to_json() for problem in error.problems]
    return told


def main() -> None:
    """Answer on the standard output, which nothing else reaches."""
    with redirect_stdout(sys.stderr):
        told = report(Path(sys.argv[1]))
    sys.stdout.write(json.dumps(told, default=str))


if __name__ == "__main__":
    main()
