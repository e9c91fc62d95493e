"""Processes that share the tokens of each row: the numbers of one process, whatever is trained and however the model lies."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any

import pytest
import yaml

from gym_testkit.bench import Bench
from gym_testkit.team import start

fresh = count()
LORA = {"adapter": {"name": "lora", "rank": 4}}
REWARDS = [{"name": "length", "maximum": 2, "slack": 14}]
GRPO = {"name": "grpo", "rewards": REWARDS, "group_size": 3, "max_new_tokens": 4, "beta": 0.1, "top_p": 0.9}
GRPO |= {"num_mini_batches": 2, "entropy_coef": 0.1, "top_k": 20}
SECTIONS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "full": ("sft", "conversation", {"algorithm": {"name": "sft", "token_metrics": True}}),
    "lora": ("sft", "conversation", LORA),
    "pairs": ("dpo", "preference", LORA | {"algorithm": {"name": "dpo", "precompute_ref_log_probs": False}}),
    "kept": ("dpo", "preference", {"algorithm": {"name": "dpo", "precompute_ref_log_probs": True}}),
    "a second model": ("ipo", "preference", {"algorithm": {"name": "ipo", "precompute_ref_log_probs": False}}),
    "unpaired": ("kto", "feedback", LORA),
    "head": ("reward_model", "preference", LORA),
    "rollouts": ("grpo", "prompt", LORA | {"algorithm": GRPO}),
    "distributions": ("tdpo1", "preference", LORA),
}
TRAIN = {"max_steps": 4, "batch_size": 3, "accumulate": 2, "save_every": 2, "eval_every": 2, "precision": "fp32"}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("contexts")


@pytest.fixture(scope="module")
def recipe(root: Path):
    """Return a function that writes a recipe and returns its file."""
    bench = Bench(root)

    def write(what: str, **train: Any) -> str:
        name, rows, sections = SECTIONS[what]
        body = bench.recipe(name, rows, **TRAIN | train)
        body["data"] = {"sources": [body["data"]], "validation": 4}
        file = root / f"recipe-{next(fresh)}.yaml"
        file.write_text(yaml.safe_dump(body | sections))
        return str(file)

    return write


def spread(strategy: str, size: int) -> tuple[str, str]:
    return f"distributed={strategy}", f"distributed.context_parallel_size={size}"


@pytest.fixture(scope="module")
def trained(root: Path, recipe):
    """Return a function that gives the output of a finished run, trained once."""
    done: dict[tuple[Any, ...], Path] = {}

    def train(*form: Any) -> Path:
        if form not in done:
            what, world, strategy, size = form
            output = root / "-".join(map(str, form))
            team = start(world, recipe(what), f"output={output}", *spread(strategy, size))
            assert team.codes(within=240) == [0] * world, team.errors()
            done[form] = output
        return done[form]

    return train


def lines(output: Path) -> list[dict[str, float]]:
    found = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "tokens_per_second"} for line in found]


def agree(one: Path, other: Path) -> None:
    for left, right in zip(lines(one), lines(other), strict=True):
        assert left == pytest.approx(right, rel=1e-3, abs=2e-5)
        assert left.get("num_tokens") == right.get("num_tokens")
    figures = [json.loads((output / "run.json").read_text())["training"] for output in (one, other)]
    assert figures[0]["samples"] == figures[1]["samples"] and figures[0]["tokens"] == figures[1]["tokens"]


SLOW = pytest.mark.slow
FORMS = [
    ("full", 2, "ddp", 2),
    ("pairs", 2, "fsdp", 2),
    pytest.param("full", 2, "fsdp", 2, marks=SLOW),
    pytest.param("full", 4, "ddp", 2, marks=SLOW),
    pytest.param("full", 4, "fsdp", 2, marks=SLOW),
    pytest.param("full", 4, "ddp", 4, marks=SLOW),
    pytest.param("lora", 2, "ddp", 2, marks=SLOW),
    pytest.param("pairs", 4, "ddp", 2, marks=SLOW),
    pytest.param("kept", 4, "ddp", 2, marks=SLOW),
    pytest.param("a second model", 2, "ddp", 2, marks=SLOW),
    pytest.param("unpaired", 4, "ddp", 2, marks=SLOW),
    pytest.param("head", 2, "ddp", 2, marks=SLOW),
    pytest.param("head", 4, "fsdp", 2, marks=SLOW),
    pytest.param("rollouts", 2, "ddp", 2, marks=SLOW),
    pytest.param("rollouts", 4, "ddp", 2, marks=SLOW),
    pytest.param("distributions", 2, "ddp", 2, marks=SLOW),
]


@pytest.mark.parametrize(("what", "world", "strategy", "size"), FORMS)
def test_processes_that_share_rows_train_as_one_does(trained, what: str, world: int, strategy: str, size: int) -> None:
    agree(trained(what, 1, "ddp", 1), trained(what, world, strategy, size))


def test_killed_and_resumed_is_uninterrupted(root: Path, trained, recipe) -> None:
    """Bit for bit, with the same number of processes."""
    whole, again = trained("full", 2, "ddp", 2), root / "again"
    copytree(whole, again)
    rmtree(again / "checkpoints" / "step-00000004")
    rmtree(again / "model")
    record = json.loads((again / "run.json").read_text())
    (again / "run.json").write_text(json.dumps(record | {"status": "interrupted"}))
    team = start(2, recipe("full"), f"output={again}", *spread("ddp", 2))
    assert team.codes() == [0, 0] and "continuing from step-00000002" in team.errors(), team.errors()
    for name in ("model", "checkpoints/step-00000004"):
        files = list((whole / name).glob("*.safetensors"))
        assert files and all(path.read_bytes() == (again / name / path.name).read_bytes() for path in files)
