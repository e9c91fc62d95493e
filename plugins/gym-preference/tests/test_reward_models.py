"""Reward models of outcomes and of steps: losses in float64, where scores are read, and what other parts make of a run."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from gym_core import GymError, load_recipe
from gym_plan.plan import plan
from gym_preference import ProcessRewardModel, RewardModel
from gym_preference.reward_models import naive_losses as score_oracles
from gym_preference.reward_models.objective import RewardModelPolicy
from gym_preference.reward_models.outcome import RewardLoss
from gym_preference.reward_models.process import ProcessLoss
from gym_rewards import RewardInput
from gym_rl.reward_models import Model, ProcessModel
from gym_testkit.bench import Bench
from gym_testkit.team import start
from gym_torch.model.layout_support import layout_for
from gym_torch.model.scalar_head import FILE, ScalarHead
from gym_torch.packing import PACKED, PADDED
from gym_torch.shared_prefixes import SHARED

torch.set_num_threads(1)
LORA = {"name": "lora", "rank": 4}


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def said(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


TOLD = "Say it in few words: "  #: as long as what samples that begin alike share
PAIRS = [
    {"prompt": f"{TOLD}Name a city.", "chosen": "Rome", "rejected": "A river, and more.", "margin": 0.75},
    {"chosen": [user(TOLD + "a"), said("b")], "rejected": [user(TOLD + "c"), said("b")]},
    {"chosen": [user("a"), said("b"), user("c"), said("d")], "rejected": [user("a"), said("e"), user("c"), said("f")]},
]
STEPS = [
    {"prompt": f"{TOLD}2 + 2 + 3?", "completions": ["2 + 2 is 4.", "4 + 3 is 8."], "labels": [True, False]},
    {"prompt": f"{TOLD}1 + 1?", "completions": ["One", "and one", "is two."], "labels": [0.25, None, 1]},
]
KINDS: dict[str, Any] = {
    "preference": (RewardModel(center_rewards_coefficient=0.1), RewardLoss, score_oracles.reward_model, PAIRS, 3),
    "stepwise": (ProcessRewardModel(), ProcessLoss, score_oracles.process_reward_model, STEPS, 4),
}


def examples(bench: Bench, rows: list[Any], shape: str) -> list[Any]:
    data = load_recipe(bench.recipe("sft") | {"data": str(bench.file(rows))}).data
    assert data is not None
    return list(data.build(tokenizer=bench.model(), rows=shape, seed=0).train)


def drawn(head: ScalarHead) -> ScalarHead:
    with torch.no_grad():
        head.weight.normal_(0, 0.5, generator=torch.Generator().manual_seed(1))
        head.bias.fill_(0.3)
    return head


def load(path: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(path, dtype=dtype)


@pytest.mark.parametrize("layout", [PACKED, PADDED, SHARED], ids=["packed", "padded", "shared"])
@pytest.mark.parametrize("shape", KINDS)
def test_loss_and_gradient_agree_with_the_formula_in_float64(bench: Bench, shape: str, layout: Any) -> None:
    config, objective_class, oracle, rows, weight = KINDS[shape]
    model = load(bench.model(), torch.float64)
    if layout is not PADDED:
        assert layout_for(model) is PACKED
    exact, data = load(bench.model(), torch.float64), examples(bench, rows, shape)
    objective = objective_class(config, layout)
    head = drawn(objective.auxiliary_modules(model)["head"]).double().requires_grad_()
    precise = copy.deepcopy(head)
    batch = objective.collate(data)
    assert bool(batch.shared) == (layout is SHARED)
    loss, _ = objective.loss(RewardModelPolicy(model, auxiliary={"head": head}), batch)
    wanted = oracle(config, exact, data, {"head": precise})
    loss.backward()
    wanted.backward()
    assert objective.weight(batch) == weight
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-9)
    pairs = [
        *zip(model.parameters(), exact.parameters(), strict=True),
        *zip(head.parameters(), precise.parameters(), strict=True),
    ]
    for ours, theirs in pairs:
        assert (ours.grad - theirs.grad).norm() <= 1e-6 * theirs.grad.norm() + 1e-12
    assert all(theirs.grad.norm() > 0 for _, theirs in pairs)


def test_pairs_by_hand() -> None:
    class Given:
        """Scores that are given in place of a model's."""

        columns = {"margin": torch.tensor([0.0, 1.0, 0.0])}
        answers = 6

    scores = torch.tensor([2.0, 1.0, 0.5, 1.5, 3.0, 3.0], requires_grad=True)
    loss, metrics = RewardLoss(RewardModel()).loss(lambda _: scores, Given())  # type: ignore[arg-type]
    assert loss.item() == pytest.approx(np.log1p(np.exp(-1.0)) + np.log1p(np.exp(2.0)) + np.log(2.0))
    found = {name: float(value.numbers()[0]) for name, value in metrics.items()}
    assert found == {"accuracy": 1.5, "margin": 0.0, "rewards/chosen": 5.5, "rewards/rejected": 5.5, "mean_reward": 5.5}
    centred, _ = RewardLoss(RewardModel(center_rewards_coefficient=0.01)).loss(lambda _: scores, Given())  # type: ignore[arg-type]
    assert (centred - loss).item() == pytest.approx(0.01 * (9 + 4 + 36))


@pytest.mark.parametrize("adapter", [None, LORA], ids=["full", "lora"])
def test_what_a_reward_says_is_what_was_trained(bench: Bench, adapter: dict[str, Any] | None) -> None:
    """The reward `model` gives an answer the number that the objective compared, wherever the pair parts."""
    recipe = bench.recipe("reward_model", max_steps=6) | {"data": str(bench.file(PAIRS))}
    made = bench.run(recipe | ({"adapter": adapter} if adapter else {}))
    folder = made.outcome.artifact.path
    head = load_file(folder / FILE)
    assert all(weight.abs().max() > 0 for name, weight in head.items() if name.endswith("weight"))
    assert (folder / "adapter_model.safetensors").exists() == bool(adapter)
    assert not list(folder.rglob("*.bin")) and not list(folder.rglob("*.pt"))
    asked = [
        (
            RewardInput(row["chosen"], messages=[user(row["prompt"])]),
            RewardInput(row["rejected"], messages=[user(row["prompt"])]),
        )
        for row in PAIRS[:1]
    ]
    asked += [
        tuple(RewardInput(row[side][-1]["content"], messages=row[side][:-1]) for side in ("chosen", "rejected"))  # type: ignore[misc]
        for row in PAIRS[1:]
    ]
    reward = Model(path=str(made.outcome.output)).build()
    found = reward([answer for pair in asked for answer in pair])
    objective = RewardLoss(RewardModel(), PADDED)
    batch = objective.collate(examples(bench, PAIRS, "preference"))
    policy = RewardModelPolicy(reward.model, auxiliary={"head": reward.head})
    reward.model.set_attn_implementation("sdpa")
    with torch.no_grad():
        assert found == pytest.approx(policy(batch).tolist(), abs=1e-5)
    assert len(set(found)) == 6


def test_what_a_process_reward_says_is_what_was_trained(bench: Bench) -> None:
    recipe = bench.recipe("process_reward_model", max_steps=6) | {"data": str(bench.file(STEPS))}
    output = str(bench.run(recipe).outcome.output)
    rewards = {way: ProcessModel(path=output, combine=way).build() for way in ("min", "product", "last", "mean")}
    objective = ProcessLoss(ProcessRewardModel(), PADDED)
    every = [row | {"labels": [True] * len(row["completions"])} for row in STEPS]
    batch = objective.collate(examples(bench, every, "stepwise"))
    model = rewards["min"]
    policy = RewardModelPolicy(
        AutoModelForCausalLM.from_pretrained(Path(output) / "model"), auxiliary={"head": model.head}
    )
    with torch.no_grad():
        trained = policy(batch).double().sigmoid().tolist()
    answers = [RewardInput("\n".join(row["completions"]), messages=[user(row["prompt"])]) for row in STEPS]
    steps = [trained[:2], trained[2:]]
    wanted = {
        "min": [min(each) for each in steps],
        "product": [float(np.prod(each)) for each in steps],
        "last": [each[-1] for each in steps],
        "mean": [float(np.mean(each)) for each in steps],
    }
    for way, reward in rewards.items():
        assert reward(answers) == pytest.approx(wanted[way], abs=1e-5), way
    blank = RewardInput("2 + 2 is 4.\n\n \n4 + 3 is 8.\n", messages=[user(STEPS[0]["prompt"])])  # type: ignore[arg-type]
    assert model([blank]) == pytest.approx(wanted["min"][:1], abs=1e-5)
    assert model([RewardInput("", messages=[user("a")]), RewardInput(" \n", messages=[user("a")])]) == [0.0, 0.0]


@pytest.mark.parametrize("algorithm", ["reward_model", "process_reward_model"])
def test_it_learns_to_tell_them_apart(bench: Bench, algorithm: str) -> None:
    shape = "preference" if algorithm == "reward_model" else "stepwise"
    lines = bench.run(bench.recipe(algorithm, shape, max_steps=60, batch_size=16)).metrics
    first, last = ([line for line in lines if "loss" in line][place] for place in (0, -1))
    assert first["loss"] == pytest.approx(np.log(2), rel=1e-4) and first["accuracy"] == 0.5
    assert last["accuracy"] == 1.0
    names = (
        {"margin", "rewards/chosen", "rewards/rejected", "mean_reward"}
        if shape == "preference"
        else {"accuracy/incorrect"}
    )
    assert names <= last.keys()


def test_noise_on_embeddings_is_learnt_with(bench: Bench) -> None:
    """The head begins at zero, so the second step is the first to see what states it is given."""
    recipe = bench.recipe("reward_model", "preference", max_steps=2)
    noisy = recipe | {"model": {"path": recipe["model"], "neftune_noise_alpha": 5.0}}
    plain, found = (bench.run(each, name).series("loss") for each, name in ((recipe, "plain"), (noisy, "noisy")))
    assert plain[0] == found[0] and plain[1] != pytest.approx(found[1], rel=1e-4)


def test_a_margin_asks_for_that_much(bench: Bench) -> None:
    """A pair is done with once it is well beyond its margin, so a larger margin ends with rewards further apart."""
    rows = [{"prompt": "a", "chosen": "b", "rejected": "c"}]
    apart = {}
    for margin in (0.0, 20.0):
        file = str(bench.file([row | {"margin": margin} for row in rows]))
        recipe = bench.recipe("reward_model", max_steps=30, batch_size=1) | {"data": file}
        apart[margin] = bench.run(recipe, f"margin-{margin:g}").series("margin")[-1]
    assert apart[20.0] > apart[0.0] + 2


def test_it_goes_on_from_the_head_that_lies_beside_the_weights(bench: Bench) -> None:
    first = bench.run(bench.recipe("reward_model", "preference", max_steps=4), "first").outcome.artifact.path
    again = bench.recipe("reward_model", "preference", max_steps=1, learning_rate=1e-30) | {"model": str(first)}
    second = bench.run(again, "second").outcome.artifact.path
    torch.testing.assert_close(load_file(second / FILE), load_file(first / FILE))


@pytest.mark.parametrize("algorithm", ["reward_model", "process_reward_model"])
def test_it_can_be_planned_with_its_data_and_without(bench: Bench, algorithm: str) -> None:
    shape = "preference" if algorithm == "reward_model" else "stepwise"
    for name, data in {"known": str(bench.data(shape)), "unknown": "nowhere.jsonl"}.items():
        file = bench.path(f"{name}.yaml")
        file.write_text(json.dumps(bench.recipe(algorithm, max_steps=3) | {"data": data}))
        planned = plan(load_recipe(file))
        assert planned.steps == 3 and 0 < planned.memory.activations < planned.memory.peak


def untied(bench: Bench) -> Path:
    path = shutil.copytree(bench.model(), bench.path("untied"))
    shape = AutoConfig.from_pretrained(path, tie_word_embeddings=False)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(shape).save_pretrained(path)
    return path


def test_two_processes_share_a_model_whose_words_nobody_asks_for(bench: Bench) -> None:
    path = untied(bench)
    recipe = bench.recipe("reward_model", "preference", max_steps=4, batch_size=2, accumulate=4) | {"model": str(path)}
    alone = bench.run(recipe, "alone")
    before, after = (load_file(folder / "model.safetensors") for folder in (path, alone.outcome.artifact.path))
    assert torch.equal(before["lm_head.weight"], after["lm_head.weight"])
    file, output = bench.path("recipe.yaml"), bench.path("shared")
    file.write_text(json.dumps(recipe | {"output": str(output)}))
    team = start(2, str(file))
    assert team.codes(within=240) == [0, 0], team.errors()
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    for name in ("loss", "grad_norm", "accuracy"):
        assert [line[name] for line in lines] == pytest.approx(alone.series(name), rel=1e-4)


def test_a_reward_of_another_kind_of_head_is_refused(bench: Bench) -> None:
    made = bench.run(bench.recipe("sft", max_steps=1))
    with pytest.raises(GymError, match=f"there is no {FILE}"):
        ProcessModel(path=str(made.outcome.output)).build()


def daring(number: int) -> dict[str, str]:
    """A pair of which the answer that does not shrug is preferred."""
    first, second = number % 7 + 1, number % 5 + 2
    shrug = "I do not know." if number % 3 else "I am not sure."
    return {"prompt": f"What is {first} plus {second}?", "chosen": str(first + second), "rejected": shrug}


def test_grpo_earns_more_of_what_a_model_made_here_gives(bench: Bench) -> None:
    """From pairs to a reward model to a policy that earns more of it: fewer shrugs, of which the base is full."""
    tiny = bench.recipe("reward_model") | {"model": "tiny", "adapter": {"name": "lora", "rank": 8}}
    train = {"max_steps": 10, "batch_size": 8, "learning_rate": 3e-3}
    pairs = tiny | {"data": str(bench.file([daring(number) for number in range(32)])), "train": tiny["train"] | train}
    reward = bench.run(pairs, "reward")
    assert reward.series("accuracy")[-1] == 1.0
    data = {"sources": [{"name": "tiny-tasks", "task": "arithmetic", "count": 64}], "cutoff": 256}
    judged = [{"name": "model", "path": str(reward.outcome.output)}]
    grpo = {"name": "grpo", "rewards": judged, "max_new_tokens": 16}
    train = {"max_steps": 16, "batch_size": 32, "learning_rate": 3e-3}
    policy = bench.run(tiny | {"data": data, "algorithm": grpo, "train": tiny["train"] | train}, "policy")
    earned = policy.series("rewards/model/mean")
    shrug, number = Model(path=str(reward.outcome.output)).build()(
        [RewardInput(text, messages=[user("What is 3 plus 4?")]) for text in ("I am not sure.", "7")]
    )
    assert np.mean(earned[-2:]) > np.mean(earned[:2]) + 0.2 * (number - shrug)


def test_a_process_reward_judges_answers_of_a_policy(bench: Bench) -> None:
    made = bench.run(bench.recipe("process_reward_model", "stepwise", max_steps=4), "process")
    judged = [{"name": "process-model", "path": str(made.outcome.output), "separator": "e"}]
    grpo = {"name": "grpo", "rewards": judged, "max_new_tokens": 8}
    earned = bench.run(bench.recipe(grpo, "prompt", max_steps=2), "policy").series("rewards/process-model/mean")
    assert len(earned) == 2 and all(0 < value < 1 for value in earned)
