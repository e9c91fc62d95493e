"""`gym`, the Python API under its own name: one file, names on first use, advice where a package is missing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gym_core

SOURCE = Path(gym_core.__file__).parent


def python(code: str, *paths: Path, cwd: Path | None = None) -> str:
    env = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "code",
    [
        "from gym import Trainer, TrainingConfig",
        "from gym.train import run_sft, run_exp",
        "from gym.hparams import get_train_args",
        "import gym.train; gym.train.run_sft",
        "import gym; gym.train.run_sft, gym.Trainer",
        "import gym, importlib.util; assert importlib.util.find_spec('gym.train')",
        "import gym; assert not hasattr(gym, 'make'); assert 'Trainer' in dir(gym)",
        "import gym.quantization; assert 'DeltaSoup' in dir(gym.quantization)",
        "import gym, sys; assert not {'torch', 'numpy', 'pydantic'} & sys.modules.keys()",
    ],
)
def test_names_are_there(code):
    python(code)


def test_as_a_program_it_is_the_command_line():
    done = subprocess.run([sys.executable, "-m", "gym", "trainn"], capture_output=True, text=True)
    assert done.returncode == 2 and "did you mean `gym train`?" in done.stderr


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("from gym.quantization import BitDeltaConfig, BitDeltaQuantizer", "pip install gym-bitdelta"),
        ("from gym.quantization import DeltaQuantConfig, QuantMethod", "pip install gym-bitdelta"),
        ("from gym.quantization import DeltaSoupConfig, AggregationMethod", "pip install gym-deltasoup"),
        ("from gym.quantization import DeltaSoup", "pip install gym-deltasoup"),
        ("from gym.personalization import PersonalizedTrainer", "pip install gym-personalization"),
        ("from gym import TrainingFreeGRPO, GRPOConfig", "pip install gym-training-free"),
        ("from gym import make", "cannot import name 'make'"),
        ("from gym.quantization import Nothing", "cannot import name 'Nothing'"),
        ("import gym.envs", "No module named 'gym.envs'"),
    ],
)
def test_a_name_without_its_package_says_what_to_install(line, said):
    code = f"import gym_core.metadata as d\nd.search_path = lambda: []\ntry:\n    {line}\n"
    assert said in python(code + "except ImportError as error:\n    print(error)")


def test_plugins_serve_names(install):
    points = {
        "gym.facade": {
            "quantization.OwnConfig": "bits:Config",
            "fresh.Thing": "bits:Thing",
            "Broken": "bits:nothing",
        }
    }
    site = install("gym-bits", {"bits": "class Config: ...\nclass Thing: ...\n"}, points)
    code = "from gym.quantization import OwnConfig\nfrom gym.fresh import Thing\nimport sys\n"
    code += "print(OwnConfig.__module__, Thing.__name__)\n"
    code += "try:\n    from gym import Broken\nexcept ImportError as error:\n    print(error)"
    first, *rest = python(code, site).splitlines()
    assert first == "bits Thing"
    assert "gym-bits" in "".join(rest)
    lazy = python(
        "import gym.fresh, sys; print('bits' in sys.modules); gym.fresh.Thing; print('bits' in sys.modules)",
        site,
    )
    assert lazy.split() == ["False", "True"]


def test_two_packages_with_one_name_are_both_named(install):
    for dist in ("gym-a", "gym-b"):
        site = install(dist, {f"{dist[4:]}_mod": "X = 1\n"}, {"gym.facade": {"X": f"{dist[4:]}_mod:X"}})
    said = python("try:\n    from gym import X\nexcept ImportError as error:\n    print(error)", site)
    assert "gym-a 1.0 and gym-b 1.0" in said


def test_the_core_never_imports_the_facade():
    uses = re.compile(r"^\s*(from|import) gym[\s.]", re.MULTILINE)
    assert [path.name for path in SOURCE.rglob("*.py") if uses.search(path.read_text(encoding="utf-8"))] == []


def test_it_is_one_file_beside_the_core():
    assert (SOURCE.parent / "gym.py").is_file()
    assert not (SOURCE.parent / "gym").exists()


def test_another_package_called_gym_hurts_only_the_facade(tmp_path: Path):
    (tmp_path / "gym").mkdir()
    (tmp_path / "gym" / "__init__.py").write_text("make = 1\n")
    assert python("import gym, gym_core; print(gym.make, gym_core.Recipe.__name__)", tmp_path) == "1 Recipe\n"
