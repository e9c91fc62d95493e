"""PPO: loss and estimates against formulas in float64, critics of both kinds in whole runs, and what they cost."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from gym_adapters import LoRA
from gym_core import Callback, GymError, Recipe, execute, load_recipe
from gym_plan.plan import plan
from gym_rewards import Length
from gym_rl import PPO
from gym_rl.critic import ActorCritic, SharedCritic
from gym_rl.ppo import PPOLoss, gae_advantages, rollouts_with_values
from gym_rl.rollouts.experience import Experience, Rollout
from gym_rl.rollouts.metrics import rollout_metrics
from gym_testkit import tiny
from gym_testkit.bench import Bench, fingerprint
from gym_torch.batch import Piece
from gym_torch.contribution import Contribution
from gym_torch.loop.job import Job
from gym_torch.model.layout_support import layout_for
from gym_torch.model.scalar_head import FILE, ScalarHead
from gym_torch.observer import Observer, Progress
from gym_torch.packing import PACKED, PADDED

torch.set_num_threads(1)
REWARDS = [Length()]
LENGTHS = (4, 1, 7, 2)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_model(tmp_path_factory.mktemp("ppo") / "model", 0)


def load(path: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)


def answers() -> list[Rollout]:
    """Draw answers off the policy; nothing judged the third."""
    random = np.random.default_rng(0)
    made = []
    for number, length in enumerate(LENGTHS):
        tokens = random.integers(3, 60, 5).astype(np.int32)
        prompt = Piece(f"row {number // 2}", tokens if number % 2 == 0 else made[-1].prompt.tokens, np.zeros(5, bool))
        said = random.integers(3, 60, length).astype(np.int32)
        columns = {name: random.normal(size=length).astype(np.float32) for name in ("advantages", "values", "returns")}
        columns["sampling_log_probs"] = columns["old_log_probs"] = random.uniform(-6, -3, length).astype(np.float32)
        if number == 2:
            columns |= {"advantages": np.zeros(length, np.float32), "returns": np.full(length, np.nan, np.float32)}
        made.append(Rollout(str(number), number // 2, prompt, said, np.ones(length, bool), columns, number))
    return made


@pytest.mark.parametrize("layout", [PACKED, PADDED], ids=["packed", "padded"])
def test_loss_and_gradient_agree_with_the_formula_in_float64(path: Path, layout: Any) -> None:
    model = load(path)
    if layout is PACKED:
        assert layout_for(model) is PACKED
    exact = copy.deepcopy(load(path)).double()
    config = PPO(rewards=REWARDS, vf_coef=0.7, cliprange_value=0.3)
    critic = SharedCritic(ScalarHead.of(model))
    with torch.no_grad():
        critic.head.weight.normal_(0, 0.3, generator=torch.Generator().manual_seed(0))
        critic.head.bias.fill_(0.2)
    head = copy.deepcopy(critic.head).double()
    objective = PPOLoss(config, layout)
    batch = objective.collate(answers())
    loss, metrics = objective.loss(ActorCritic(model, auxiliary={"critic": critic}), batch)
    wanted, value_loss = (torch.zeros((), dtype=torch.float64) for _ in range(2))
    for answer in answers():
        text = torch.tensor([answer.prompt.tokens.tolist() + answer.tokens.tolist()])
        output = exact(input_ids=text, output_hidden_states=True)
        log_probs = output.logits[0, 4:-1].log_softmax(1)
        values = head(output.hidden_states[-1][0, 4:-1])
        known = {name: column.tolist() for name, column in answer.columns.items()}
        for place, token in enumerate(answer.tokens.tolist()):
            advantage, old, returned = (known[name][place] for name in ("advantages", "values", "returns"))
            ratio = torch.exp(log_probs[place, token] - known["old_log_probs"][place])
            wanted = wanted - torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
            if not np.isnan(returned):
                near = old + (values[place] - old).clamp(-0.3, 0.3)
                value_loss = value_loss + torch.maximum((values[place] - returned) ** 2, (near - returned) ** 2) / 2
    wanted = wanted + 0.7 * value_loss
    assert objective.weight(batch) == sum(LENGTHS)
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-5)
    assert metrics["value_loss"].numbers()[0].item() == pytest.approx(value_loss.item(), rel=1e-5)
    loss.backward()
    wanted.backward()
    pairs = [
        *zip(model.parameters(), exact.parameters(), strict=True),
        *zip(critic.parameters(), head.parameters(), strict=True),
    ]
    for ours, theirs in pairs:
        assert (ours.grad.double() - theirs.grad).norm() <= 1e-4 * theirs.grad.norm() + 1e-9


def round_of(rewards: list[float], values: Tensor, lengths: list[int]) -> Experience:
    total = sum(lengths)
    return Experience(
        number=torch.tensor(0),
        groups=torch.arange(len(lengths)),
        prompts=torch.arange(len(lengths)),
        lengths=torch.tensor(lengths),
        tokens=torch.zeros(total, dtype=torch.int32),
        finished=torch.ones(len(lengths), dtype=torch.bool),
        rewards=torch.tensor(rewards, dtype=torch.float64),
        columns={"values": values},
    )


def test_estimates_by_hand() -> None:
    lengths, rewards = [3, 1, 2], [1.0, float("nan"), -2.0]
    values = torch.randn(6, generator=torch.Generator().manual_seed(0))
    config = PPO(rewards=REWARDS, gamma=0.9, gae_lambda=0.8)
    found = gae_advantages(round_of(rewards, values, lengths), config)
    wanted, start = [], 0
    for length, reward in zip(lengths, rewards, strict=True):
        known = [*values[start : start + length].tolist(), 0.0]
        surprise = [0.9 * known[t + 1] - known[t] + (reward if t == length - 1 else 0) for t in range(length)]
        wanted += [sum((0.9 * 0.8) ** (k - t) * surprise[k] for k in range(t, length)) for t in range(length)]
        start += length
    raw, judged = np.array(wanted), [0, 1, 2, 4, 5]
    mean, deviation = raw[judged].mean(), raw[judged].std(ddof=1)
    whitened = [(raw[t] - mean) / (deviation + 1e-4) if t in judged else 0.0 for t in range(6)]
    assert found["advantages"].tolist() == pytest.approx(whitened, abs=1e-5)
    assert found["returns"][judged].tolist() == pytest.approx((raw + values.numpy())[judged].tolist(), abs=1e-5)
    assert found["returns"].isnan().tolist() == [False, False, False, True, False, False]


def test_nothing_judged_teaches_nothing() -> None:
    found = gae_advantages(round_of([float("nan")] * 2, torch.ones(5), [2, 3]), PPO(rewards=REWARDS))
    assert (found["advantages"] == 0).all() and found["returns"].isnan().all()


@pytest.mark.parametrize(("share", "explained"), [(0.0, 0.0), (0.5, 0.75), (1.0, 1.0)])
def test_how_much_the_critic_foresaw(share: float, explained: float) -> None:
    returns = torch.tensor([1.0, -2.0, 0.5, 3.0, float("nan")])
    columns = {"returns": returns, "sampling_log_probs": torch.zeros(5)}
    judged = round_of([1.0, 2.0], share * returns.nan_to_num() + 7, [4, 1])
    assert rollout_metrics(judged.with_columns(columns))["explained_variance"] == pytest.approx(explained, abs=1e-6)
    unknown = columns | {"returns": torch.full((5,), float("nan"))}
    assert rollout_metrics(judged.with_columns(unknown))["explained_variance"] == 0


def recipe(bench: Bench, algorithm: dict[str, Any] | None = None, **train: Any) -> dict[str, Any]:
    rewards = [{"name": "length", "maximum": 2, "slack": 14}]
    options = {"name": "ppo", "rewards": rewards, "max_new_tokens": 16, **(algorithm or {})}
    return bench.recipe(options, "prompt", **{"batch_size": 4, "accumulate": 2, "max_steps": 6, **train})


class Crash(Exception):
    """Stands for whatever ends a process without warning."""


class CrashAfter(Callback):
    """Crashes after a step."""

    step: int
    """Which."""

    def build(self, **context: Any) -> Observer:
        return Crashing(self)


class Crashing(Observer):
    def __init__(self, config: CrashAfter) -> None:
        self.config = config

    def stepped(self, progress: Progress) -> None:
        if progress.step == self.config.step:
            raise Crash


LORA = {"name": "lora", "rank": 4}


@pytest.mark.parametrize(
    ("separate", "adapter", "warmup"),
    [(False, LORA, 0), (True, LORA, 0), (True, None, 0), (True, None, 1)],
    ids=["head-lora", "model-lora", "model-full", "in the warm-up"],
)
def test_crashed_in_the_middle_of_a_round_and_resumed_it_is_the_same(
    tmp_path: Path, adapter: Any, separate: bool, warmup: int
) -> None:
    bench = Bench(tmp_path)
    algorithm = ({"critic": str(bench.model(1))} if separate else {}) | {"critic_warmup": warmup}
    made = recipe(bench, algorithm, save_every=3) | ({"adapter": adapter} if adapter else {})
    whole = bench.run(made, "whole").outcome.artifact.path
    folder = whole / "critic" if separate else whole
    head = ScalarHead.read(folder)
    assert head.weight.abs().max() > 0 and head.bias.abs().max() > 0
    assert separate == (whole / "critic").is_dir()
    if separate and not adapter:
        own, before = (load_file(place / "model.safetensors") for place in (folder, bench.model(1)))
        assert own.keys() == before.keys() and any(not torch.equal(own[name], before[name]) for name in own)
    output = bench.path("crashed")
    again = load_recipe({**made, "output": str(output)})
    with pytest.raises(Crash):
        execute(replace(again, callbacks=(CrashAfter(step=5),)))
    checkpoint = output / "checkpoints" / "step-00000003"
    assert {"columns/values", "columns/returns"} <= load_file(checkpoint / "source.safetensors").keys()
    resumed = execute(again).artifact.path
    assert fingerprint(resumed, ".safetensors") == fingerprint(whole, ".safetensors")


@pytest.mark.parametrize("optimizer", ["adamw", "lion", "muon"])
@pytest.mark.parametrize("separate", [False, True], ids=["head", "model"])
def test_the_critic_alone_learns_in_its_warm_up(tmp_path: Path, separate: bool, optimizer: str) -> None:
    """Neither its own loss nor decay, KL and entropy move the policy; the critic learns as it would beside a policy at rest."""
    bench = Bench(tmp_path)
    options = {"critic": str(bench.model(1))} if separate else {}
    made = recipe(bench, options | {"critic_warmup": 2, "num_mini_batches": 2, "beta": 0.1, "entropy_coef": 0.1})
    made |= {"optimizer": {"name": optimizer, "weight_decay": 0.1}}
    run = bench.run(made, max_steps=6, save_every=2)
    first, folder = load_file(bench.model() / "model.safetensors"), run.outcome.artifact.path
    at_the_end = run.outcome.output / "checkpoints" / "step-00000004"
    for place, rests in ((at_the_end, True), (folder, False)):
        left = load_file(place / "model.safetensors")
        assert all(torch.equal(left[name], weight) for name, weight in first.items()) == rests
        critic = ScalarHead.read(place / "critic" if separate else place)
        assert critic.weight.abs().max() > 0
    assert run.series("ratio/abs_dev")[:4] == pytest.approx([0.0] * 4, abs=1e-5)
    assert run.series("steps_without_update") == [0.0] * 6


def test_a_warm_up_leaves_the_norm_of_the_policy_out(tmp_path: Path) -> None:
    """A step of the warm-up is that of a value head alone over fixed states: its gradient is all that is clipped."""
    bench = Bench(tmp_path)
    made = recipe(bench, {"critic_warmup": 1, "num_mini_batches": 1}, max_steps=1, max_grad_norm=0.0)
    made |= {"optimizer": {"name": "sgd", "weight_decay": 0.0}, "scheduler": "constant"}
    made["train"] = made["train"] | {"learning_rate": 1.0}
    run = bench.run(made)
    head = ScalarHead.read(run.outcome.artifact.path)
    moved = torch.cat([head.weight.flatten(), head.bias]).norm().item()
    assert run.series("grad_norm") == [pytest.approx(moved, rel=1e-5)]


def test_a_warm_up_of_nothing_is_refused(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    with pytest.raises(GymError, match="has it learn nothing"):
        load_recipe(recipe(bench, {"critic_warmup": 1, "vf_coef": 0.0}))
    with pytest.raises(GymError, match="moves the policy with the critic"):
        bench.run(recipe(bench, {"critic_warmup": 1}, max_grad_norm=0, accumulate=1) | {"optimizer": {"name": "lomo"}})


def test_a_critic_goes_on_from_what_lies_beside_the_weights(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    first = bench.run(recipe(bench, {"critic": str(bench.model(1))}, max_steps=4), "first").outcome.artifact.path
    begun = bench.run(recipe(bench, {"critic": str(first / "critic")}, max_steps=1, learning_rate=1e-30), "second")
    found, left = (load_file(place / "critic" / FILE) for place in (begun.outcome.artifact.path, first))
    torch.testing.assert_close(found, left)
    with pytest.raises(GymError, match="the policy of a run whose critic lies beside it"):
        bench.run(recipe(bench, {"critic": str(first)}, max_steps=1), "third")


@pytest.mark.parametrize(
    ("adapter", "begun"), [("pissa", "lora_B"), ("olora", "lora_B"), ("eva", "lora_A"), ("loftq", "loftq")]
)
def test_the_adapter_of_a_critic_of_its_own_begins_too(tmp_path: Path, adapter: str, begun: str) -> None:
    """At a rate at which nothing moves, the critic holds the first values that belong to its own weights."""
    bench = Bench(tmp_path)
    options = {"critic": str(bench.model(1))}
    made = recipe(bench, options, max_steps=1, learning_rate=1e-30) | {"adapter": {"name": adapter, "rank": 4}}
    folder = bench.run(made).outcome.artifact.path
    actor, critic = (
        {
            name: weight
            for file in sorted(place.glob("*.safetensors"))
            for name, weight in load_file(file).items()
            if begun in name
        }
        for place in (folder, folder / "critic")
    )
    assert actor.keys() == critic.keys() and critic
    drawn = LoRA(rank=4).build(model=load(bench.model(1)), seed=made["train"].get("seed", 0)).state()
    for name, weight in critic.items():
        assert weight.any() and not torch.equal(weight, actor[name])
        assert name not in drawn or drawn[name].shape != weight.shape or not torch.equal(weight, drawn[name])


def test_the_adapter_of_a_critic_of_its_own_is_told_of_every_step(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    options = {"name": "adalora", "rank": 4, "target_rank": 2, "tinit": 0, "tfinal": 1}
    made = recipe(bench, {"critic": str(bench.model(1))}, max_steps=3) | {"adapter": options}
    folder = bench.run(made).outcome.artifact.path
    for place in (folder, folder / "critic"):
        masks = [kept for name, kept in load_file(place / "adalora.safetensors").items() if name.startswith("mask.")]
        assert masks and sum(int(kept.sum()) for kept in masks) == 2 * len(masks)


def test_a_critic_of_its_own_drops_out_nothing_as_the_policy_does(tmp_path: Path) -> None:
    """Its values are held near those at the beginning of the round, which were asked for without dropout."""
    bench = Bench(tmp_path)
    losses = []
    for dropout in (0.0, 0.5):
        made = recipe(bench, {"critic": str(bench.model(1))}, max_steps=2, learning_rate=0.03)
        made |= {"adapter": {"name": "lora", "rank": 4, "dropout": dropout}}
        losses.append(bench.run(made, str(dropout)).series("value_loss"))
    assert losses[0] == losses[1]


WATCHED: dict[str, Any] = {}  #: of the newest run of `watched`


def watching(parts: Any) -> Contribution:
    """Contribute what PPO does, and note down how the run is before its first step."""

    def note(job: Job) -> None:
        named = parts.policy.named_parameters()
        WATCHED["gradients"] = [name for name, weight in named if weight.grad is not None]
        WATCHED["state"] = {name: bool(weight.any()) for name, weight in parts.adapted.state().items()}
        WATCHED["policy"], WATCHED["optimizer"] = parts.policy, job.optimizer

    return replace(rollouts_with_values(parts), after_resume=note)


class Watched(PPO):
    """PPO that is watched."""

    contribution: ClassVar[str] = f"{__name__}:watching"


def watched(loaded: Recipe) -> None:
    """Carry out a recipe of PPO, watched."""
    own = loaded.algorithm
    execute(replace(loaded, algorithm=Watched(**{name: getattr(own, name) for name in own.model_fields_set})))


@pytest.mark.parametrize("adapter", ["lora_ga", "eva"])
def test_an_adapter_that_looks_at_the_first_answers_leaves_no_gradients(tmp_path: Path, adapter: str) -> None:
    """The head of the critic trains in the first step on that step alone."""
    bench = Bench(tmp_path)
    head = bench.run(recipe(bench, max_steps=2), "before").outcome.artifact.path
    (tmp_path / "headed").mkdir()
    for file in bench.model().iterdir():
        (tmp_path / "headed" / file.name).write_bytes(file.read_bytes())
    (tmp_path / "headed" / FILE).write_bytes((head / FILE).read_bytes())
    options = {"model": str(tmp_path / "headed"), "adapter": {"name": adapter, "rank": 4}}
    loaded = load_recipe(recipe(bench, max_steps=2) | options | {"output": str(bench.path("run"))})
    watched(loaded)
    assert WATCHED["gradients"] == []
    begun = {"lora_ga": "lora_B", "eva": "lora_A"}[adapter]
    assert all(moved for name, moved in WATCHED["state"].items() if begun in name)


def test_it_can_be_planned(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    file = bench.path("recipe.yaml")
    file.write_text(json.dumps(recipe(bench)))
    planned = plan(load_recipe(file))
    assert planned.steps == 6 and 0 < planned.memory.activations < planned.memory.peak


def test_a_critic_with_another_tokenizer_is_refused(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    with pytest.raises(GymError, match="must have the tokenizer of the model that is trained"):
        bench.run(recipe(bench, {"critic": str(bench.model_for(["<x>"]))}))


def test_what_a_parameter_costs(tmp_path: Path) -> None:
    """Weight, gradient and two moments, each fp32, for every model that trains: 16 bytes; PPO's critic doubles that."""
    bench = Bench(tmp_path)
    parameters = sum(weight.numel() for weight in load(bench.model()).parameters())
    costs = {}
    for name, options in {"critic": {"critic": str(bench.model(1))}, "head": {}}.items():
        loaded = load_recipe({**recipe(bench, options, max_steps=1), "output": str(bench.path(name))})
        watched(loaded)
        weights = sum(2 * weight.nbytes for weight in WATCHED["policy"].parameters())  # each has a gradient in a step
        state = WATCHED["optimizer"].state.values()
        moments = sum(value.nbytes for each in state for value in each.values() if value.dim())
        costs[name] = (weights + moments) / parameters
    head = 16 * (32 + 1) / parameters
    assert costs["head"] == pytest.approx(16 + head) and costs["critic"] == pytest.approx(32 + head)


def test_what_is_logged(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    lines = bench.run(recipe(bench)).metrics
    assert all(
        {"reward", "value_loss", "explained_variance", "clip_ratio/region_mean"} <= line.keys()
        for line in lines
        if "loss" in line
    )
    assert not any("frac_reward_zero_std" in line for line in lines)  # one completion alone differs from none
    assert lines[0]["explained_variance"] == 0  # an untrained head says 0 everywhere
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "finished"
