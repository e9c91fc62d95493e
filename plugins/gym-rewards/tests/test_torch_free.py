"""The package in an interpreter of its own: all modules, rewards and the README's example, without torch."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
#: Packages that take long to import or gigabytes to install; rewards do without.
HEAVY = ("torch", "transformers", "numpy", "gym_torch", "gym_rl", "gym_data", "datasets", "accelerate")
PROBE = """
import importlib, json, pkgutil, sys
import gym_rewards
from gym_core.component import load_object
from gym_rewards import RewardManager

for found in pkgutil.walk_packages(gym_rewards.__path__, "gym_rewards."):
    if not found.name.endswith("latex_equivalence"):  # math-verify is an extra
        importlib.import_module(found.name)
scores = {}
for name, reference in json.loads(sys.stdin.readline()).items():
    cls = load_object(reference)
    if cls.better is not None and not (name == "code" and sys.platform != "linux"):
        reward = cls.model_validate({"pattern": r"\\d+"} if name == "regex" else FUNCTION if name == "python" else {})
        manager = RewardManager({name: reward})
        scores[name] = manager(list(cls.better)).scores[name]
        manager.close()
exec(sys.stdin.read(), {"__name__": "readme"})
print(json.dumps([scores, sorted(sys.modules)]))
"""
FUNCTION = '{"function": "gym_rewards.builtin.python_function:ended"}'


def test_importing_all_modules_and_running_the_rewards_imports_no_torch():
    import json

    mine = {e.name: e.value for e in entry_points(group="gym.rewards") if e.dist and e.dist.name == "gym-rewards"}
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", PROBE.replace("FUNCTION", FUNCTION)],
        input=f"{json.dumps(mine)}\n{example}",
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    *printed, last = done.stdout.splitlines()
    scores, modules = json.loads(last)
    expected = mine.keys() - ({"http", "code"} if sys.platform != "linux" else {"http"})  # nobody listens here
    assert scores.keys() == expected
    assert all(better > worse for better, worse in scores.values()), scores
    assert printed == re.findall(r"^print\(.*#\s*(.*)$", example, re.MULTILINE) != []  # as the README says
    assert not {name.partition(".")[0] for name in modules} & set(HEAVY)
