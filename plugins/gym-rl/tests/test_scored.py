"""What a round is scored with, and what that does to the loss: a reference, an older policy, a sampler of other arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any, get_args

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor

from gym_core import GymError, execute, load_recipe
from gym_core.component import load_object
from gym_rl import RLOO, PolicyGradient, ReinforcePP
from gym_rl.answers import Rollout
from gym_rl.clipped import ClippedTokens
from gym_rl.kl import ESTIMATORS
from gym_rl.offpolicy import CORRECTIONS
from gym_rl.rewards import Length
from gym_testkit.bench import Bench, fingerprint
from gym_torch.batch import Piece

torch.set_num_threads(1)
LENGTHS = (3, 1, 5)
OWNER = [number for number, length in enumerate(LENGTHS) for _ in range(length)]


def rollouts(*names: str) -> list[Rollout]:
    """Return answers with random columns of these names."""
    random = np.random.default_rng(0)
    prompt = Piece("row", np.arange(3, 7, dtype=np.int32), np.zeros(4, bool))
    made = []
    for number, length in enumerate(LENGTHS):
        said = random.integers(3, 60, length).astype(np.int32)
        columns = {name: random.uniform(-2, -1, length).astype(np.float32) for name in names}
        columns["advantages"] = random.normal(size=length).astype(np.float32)
        made.append(Rollout(str(number), 0, prompt, said, np.ones(length, bool), columns, number))
    return made


def drawn() -> Tensor:
    values = torch.rand(len(OWNER), generator=torch.Generator().manual_seed(1))
    return (-2 + values).requires_grad_()


#: the weight of each token by its log-ratio, those of its answer, and whether to look at the token or the answer
WEIGHTS: dict[str, Callable[[float, list[float]], float]] = {
    "none": lambda token, answer: 1.0,
    "tis": lambda token, answer: min(math.exp(token), 2.0),
    "tis_answers": lambda token, answer: min(math.exp(sum(answer)), 2.0),
    "icepop": lambda token, answer: math.exp(token) if 0.5 <= math.exp(token) <= 5 else 0.0,
    "mis": lambda token, answer: math.exp(sum(answer)) if math.exp(sum(answer)) <= 2.0 else 0.0,
    "geo": lambda token, answer: float(0.99 <= math.exp(sum(answer) / len(answer)) <= 1.01),
}
PENALTIES: dict[str, Callable[[Tensor, float, float], Tensor]] = {
    "k2": lambda new, reference, old: (new - reference) ** 2 / 2,
    "k3": lambda new, reference, old: torch.exp(reference - new) - (reference - new) - 1,
    "k3_is": lambda new, reference, old: torch.exp(new - old) * (torch.exp(reference - new) - (reference - new) - 1),
    "reward": lambda new, reference, old: torch.zeros(()),
}


def clipped(new: Tensor, old: float, advantage: float) -> Tensor:
    ratio = torch.exp(new - old)
    return -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)


@pytest.mark.parametrize(("kl", "correction"), [(kl, "tis") for kl in PENALTIES] + [("k3", each) for each in WEIGHTS])
def test_loss_and_gradient_agree_with_the_formula_in_float64(kl: Any, correction: Any) -> None:
    config = ReinforcePP(rewards=[Length()], beta=0.7, kl=kl, correction=correction)
    objective, log_probs = ClippedTokens(config), drawn()
    batch = objective.collate(rollouts("sampled", "old", "reference"))
    loss, _ = objective.loss(lambda _: log_probs, batch)
    (found,) = torch.autograd.grad(loss, log_probs)

    exact = log_probs.detach().double().requires_grad_()
    columns = {name: column.double().tolist() for name, column in batch.columns.items()}
    apart = [old - sampled for old, sampled in zip(columns["old"], columns["sampled"], strict=True)]
    wanted = torch.zeros((), dtype=torch.float64)
    for place, owner in enumerate(OWNER):
        old, answer = columns["old"][place], [value for value, own in zip(apart, OWNER, strict=True) if own == owner]
        term = clipped(exact[place], old, columns["advantages"][place])
        term = term + 0.7 * PENALTIES[kl](exact[place], columns["reference"][place], old)
        wanted = wanted + WEIGHTS[correction](apart[place], answer) * term
    (right,) = torch.autograd.grad(wanted, exact)
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-5)
    torch.testing.assert_close(found.double(), right, rtol=1e-4, atol=1e-6)


def test_without_an_older_policy_the_ratio_is_one_and_the_sampler_is_corrected_for() -> None:
    objective, log_probs = ClippedTokens(ReinforcePP(rewards=[Length()])), drawn()
    batch = objective.collate(rollouts("sampled"))
    loss, metrics = objective.loss(lambda _: log_probs, batch)
    (found,) = torch.autograd.grad(loss, log_probs)
    weights = (log_probs.detach() - batch.sampled).exp().clamp(max=2.0)
    torch.testing.assert_close(found, -weights * batch.advantages)
    apart = (log_probs.detach() - batch.sampled).abs()
    assert metrics["mismatch"].tolist() == pytest.approx([float(apart.sum()), len(apart)])
    assert metrics["ratio_spread"].tolist() == [0, len(apart)]


@pytest.mark.parametrize("cls", [RLOO, ReinforcePP])
def test_what_is_measured_of_tokens_is_a_mean_over_tokens_however_losses_add_up(cls: type[PolicyGradient]) -> None:
    objective, log_probs = load_object(cls.objective)(cls(rewards=[Length()])), drawn()
    batch = objective.collate(rollouts("sampled", "old"))
    _, metrics = objective.loss(lambda _: log_probs, batch)
    ratio = (log_probs.detach() - batch.old).exp()
    wanted = {"ratio": ratio, "ratio_spread": (ratio - 1).abs()}
    for name, each in wanted.items():
        total, count = metrics[name].tolist()
        assert total / count == pytest.approx(float(each.mean()))
    assert float(metrics["ratio_largest"]) == pytest.approx(float(ratio.max()))
    assert "ratio_largest" in objective.largest


def test_the_keys_name_what_there_is() -> None:
    fields = ReinforcePP.model_fields
    assert set(get_args(fields["correction"].annotation)) == CORRECTIONS.keys()
    assert set(get_args(fields["kl"].annotation)) == (ESTIMATORS.keys() - {"k1"}) | {"reward"}  # k1 has no gradient


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def recipe(bench: Bench, adapter: str | None = None, name: str = "reinforce_pp", **options: Any) -> dict[str, Any]:
    rewards = [{"name": "regex", "pattern": "[a-z]"}]
    algorithm = {"name": name, "rewards": rewards, "max_new_tokens": 6, **options}
    made = bench.recipe(algorithm, "prompt", batch_size=4, accumulate=2)
    return made | ({"adapter": adapter} if adapter else {})


@pytest.mark.parametrize("adapter", ["lora", None])
@pytest.mark.parametrize("kl", ["k3_is", "reward"])
def test_a_policy_departs_from_its_reference_and_that_is_measured(bench: Bench, adapter: str | None, kl: str) -> None:
    """Before the first step they are the same; the reference stays where it was."""
    kept = bench.run(recipe(bench, adapter, beta=0.1, kl=kl), "kept", max_steps=3, learning_rate=0.03)
    apart = kept.series("kl_reference")
    assert apart[0] == pytest.approx(0, abs=1e-6)
    assert apart[-1] > 1e-4


def test_what_it_costs_to_depart_holds_a_policy_back(bench: Bench) -> None:
    departed = {}
    for beta in (1e-6, 10.0):
        run = bench.run(recipe(bench, beta=beta, kl="k3_is"), str(beta), max_steps=16, learning_rate=0.003)
        departed[beta] = fmean(run.series("kl_reference")[8:])
    assert departed[10.0] < 0.7 * departed[1e-6]


FAILS_ONCE = """
from pathlib import Path

def judge(texts):
    calls = Path(__file__).with_suffix(".calls")
    calls.write_text("." + (calls.read_text() if calls.exists() else ""))
    if calls.read_text() == "...":
        raise OSError("the third round cannot be judged now")
    return [float(any(letter.islower() for letter in text)) for text in texts]
"""


def test_a_run_that_goes_on_has_the_same_reference(bench: Bench) -> None:
    """Also where it is a second copy: of the model before training, not of what the checkpoint holds."""
    outcomes = []
    for name in ("whole", "broken"):
        file = bench.path(f"{name}.py")
        file.write_text(FAILS_ONCE if name == "broken" else FAILS_ONCE.replace("...", "never"), encoding="utf-8")
        made = recipe(bench, beta=0.1, mini_batches=2, rewards=[{"name": "python", "function": f"{file}:judge"}])
        made["train"] |= {"max_steps": 6, "save_every": 3, "learning_rate": 0.03}
        if name == "broken":
            with pytest.raises(GymError, match="third round"):
                execute(load_recipe({**made, "output": str(bench.root / name)}))
        outcomes.append(bench.finished(execute(load_recipe({**made, "output": str(bench.root / name)}))))
    whole, broken = outcomes
    steps = {line["step"]: line["kl_reference"] for line in broken.metrics if "loss" in line}
    assert [steps[number] for number in range(1, 7)] == whole.series("kl_reference")
    assert steps[6] > 1e-4
    paths = (each.outcome.artifact.path for each in outcomes)
    assert len({str(fingerprint(path, ".safetensors")) for path in paths}) == 1


def test_two_processes_score_what_one_does(bench: Bench) -> None:
    """Each its share; all of them then know every column, and take the same steps."""
    made = recipe(bench, "lora", beta=0.1, mini_batches=2)
    made["train"] |= {"max_steps": 4, "batch_size": 2, "accumulate": 4}
    alone = bench.run(made, "alone")
    file = bench.path("recipe.yaml")
    file.write_text(yaml.safe_dump({**made, "output": str(bench.path("shared"))}), encoding="utf-8")
    done = bench.gym("train", str(file), "--nproc", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    shared = bench.finished(execute(load_recipe(file)))
    assert shared.series("reward") == alone.series("reward")
    for key in ("loss", "kl_reference", "ratio", "ratio_largest", "kl_sampled"):
        assert shared.series(key) == pytest.approx(alone.series(key), rel=1e-4, abs=1e-5), key


def test_in_bf16_the_policy_of_a_round_is_scored_where_several_steps_learn_from_it(bench: Bench) -> None:
    made = recipe(bench, mini_batches=2)
    run = bench.run(made, max_steps=3, save_every=1, precision="bf16")
    fresh, *_ = run.metrics
    assert 1e-6 < fresh["mismatch"] < 0.1
    assert fresh["ratio_spread"] == pytest.approx(0, abs=1e-6)
    checkpoint = max((run.outcome.output / "checkpoints").glob("*/source.safetensors"))
    columns = load_file(checkpoint)
    assert columns["columns/old"].shape == columns["columns/sampled"].shape
    assert not torch.equal(columns["columns/old"], columns["columns/sampled"])


def test_in_bf16_one_step_a_round_needs_no_further_pass(bench: Bench) -> None:
    run = bench.run(recipe(bench), max_steps=2, save_every=1, precision="bf16")
    checkpoint = max((run.outcome.output / "checkpoints").glob("*/source.safetensors"))
    assert not {"columns/old", "columns/reference"} & load_file(checkpoint).keys()
    assert all(line["ratio_spread"] == 0 < line["mismatch"] for line in run.metrics if "loss" in line)


def test_a_sampler_that_is_too_far_from_the_trainer_is_refused_before_the_first_step(bench: Bench) -> None:
    with pytest.raises(GymError, match="differ") as raised:
        bench.run(recipe(bench, max_mismatch=1e-7), precision="bf16")
    assert "algorithm.max_mismatch" in str(raised.value)
    assert not (bench.root / "run" / "metrics.jsonl").read_text()
