"""Rewards from models that are made here: a value head beside weights, and classifiers of transformers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification, PreTrainedTokenizerFast

from gym_core.errors import GymError
from gym_data.templates import Qwen
from gym_data.tokenizer import Tokenizer
from gym_quant import HQQ
from gym_rewards import RewardInput
from gym_rewards.reward_manager import RewardManager
from gym_rewards.reward_names import named
from gym_rl.reward_models import Model, ProcessModel
from gym_testkit import tiny
from gym_testkit.bench import Bench
from gym_torch.model.scalar_head import FILE, ScalarHead
from gym_torch.quantization.weights import quantized_layers

torch.set_num_threads(1)

ASKED = [{"role": "user", "content": "Name a city."}]
TURNS = [{"role": "assistant", "content": "Oslo"}, {"role": "user", "content": "Further south."}]
ANSWERS = [
    RewardInput(text, messages=ASKED, id=text) for text in ("Rome", "", "Paris, and Lyon, and Lille.", "<|im_end|>")
]


def head(seed: int = 0) -> ScalarHead:
    made = ScalarHead(tiny.HIDDEN)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        made.weight.normal_(0, 0.5, generator=generator)
        made.bias.normal_(0, 0.5, generator=generator)
    return made


@pytest.fixture(scope="module")
def valued(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tiny.write_model(tmp_path_factory.mktemp("valued") / "model", 3)
    head().save(path)
    return path


def classifier(path: Path, labels: int = 1) -> Path:
    """Write a classifier with the weights of the tiny model, and a head of its own."""
    tiny.write_model(path, 3)
    shape = AutoConfig.from_pretrained(path, num_labels=labels)
    torch.manual_seed(labels)
    made = AutoModelForSequenceClassification.from_config(shape)
    made.model.load_state_dict(AutoModelForCausalLM.from_pretrained(path).model.state_dict())
    nn.init.normal_(made.score.weight)
    made.save_pretrained(path)
    return path


def texts(path: Path) -> list[torch.Tensor]:
    """Tokenize as transformers does."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(path)
    found = []
    for answer in ANSWERS[:3]:
        messages = [*ASKED, {"role": "assistant", "content": answer.text}]
        found.append(torch.tensor(tokenizer.apply_chat_template(messages, return_dict=False)))
    return found


@torch.no_grad()
def test_a_value_head_scores_the_token_that_ends_the_answer(valued: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(valued)
    wanted = []
    for tokens in texts(valued):
        end = int((tokens == 256 + tiny.SPECIAL.index("<|im_end|>")).nonzero()[-1])
        assert end == len(tokens) - 2  # a line break follows
        wanted.append(head()(model.base_model(input_ids=tokens[None]).last_hidden_state[0, end]).item())
    found = Model(path=str(valued)).build()(ANSWERS)
    assert found[:3] == pytest.approx(wanted, abs=1e-5)
    assert len(set(found)) == 4


def test_the_last_of_several_turns_is_scored_behind_the_others(valued: Path) -> None:
    """As an answer to a prompt that holds them; what was never said so would be judged else."""
    score = Model(path=str(valued)).build()
    last = [*TURNS, {"role": "assistant", "content": "Rome"}]
    asked = [
        RewardInput("Rome", messages=ASKED, turns=last),
        RewardInput("Rome", messages=[*ASKED, *TURNS]),
        ANSWERS[0],
    ]
    (several, whole, alone) = score(asked)
    assert several == pytest.approx(whole, abs=1e-5) and abs(several - alone) > 1e-3


@torch.no_grad()
def test_a_classifier_says_what_it_says_in_transformers(tmp_path: Path) -> None:
    path = classifier(tmp_path / "model")
    model = AutoModelForSequenceClassification.from_pretrained(path)
    wanted = [model(input_ids=tokens[None]).logits.item() for tokens in texts(path)]
    assert Model(path=str(path)).build()(ANSWERS[:3]) == pytest.approx(wanted, abs=1e-5)


@torch.no_grad()
def test_the_template_is_given_the_tools_of_the_row(valued: Path, tmp_path: Path) -> None:
    path = shutil.copytree(valued, tmp_path / "with-tools")
    (path / "chat_template.jinja").write_text(Qwen().build())
    tools = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
    tokenizer, model = Tokenizer(path), AutoModelForCausalLM.from_pretrained(path)
    tokens, own = tokenizer.chat([*ASKED, {"role": "assistant", "content": "Rome"}], tools)
    end = int(own.nonzero()[0][-1])
    wanted = head()(model.base_model(input_ids=torch.tensor(tokens[None].tolist())).last_hidden_state[0, end]).item()
    reward = Model(path=str(path)).build()
    asked = [RewardInput("Rome", row, messages=ASKED) for row in ({"tools": tools}, {"tools": json.dumps(tools)}, {})]
    offered, as_text, bare = reward(asked)
    assert [offered, as_text] == pytest.approx([wanted, wanted], abs=1e-5)
    assert bare != pytest.approx(wanted, abs=1e-3)


def test_neither_company_nor_order_matters(valued: Path) -> None:
    together, alone = Model(path=str(valued)).build(), Model(path=str(valued), batch=1).build()
    assert together(ANSWERS) == pytest.approx(alone(ANSWERS), abs=1e-5)
    assert together(ANSWERS[::-1]) == pytest.approx(together(ANSWERS)[::-1], abs=1e-5)
    assert together([]) == []


def test_the_judge_asks_it_beside_others(valued: Path) -> None:
    judge = RewardManager(named([Model(path=str(valued), weight=2.0)]))
    found = judge(ANSWERS)
    assert found.totals == pytest.approx([2 * score for score in found.scores["model"]])


@pytest.mark.parametrize("kind", ["valued", "classifier", "run"])
def test_it_may_be_held_in_a_few_bits(valued: Path, tmp_path: Path, kind: str) -> None:
    path = valued
    if kind == "classifier":
        path = classifier(tmp_path / "model")
    if kind == "run":
        bench = Bench(tmp_path)
        ppo = {"name": "ppo", "rewards": [{"name": "length", "maximum": 2, "slack": 14}], "max_new_tokens": 8}
        path = bench.run(bench.recipe(ppo, "prompt", max_steps=1) | {"adapter": "lora"}).outcome.output
    plain = Model(path=str(path)).build()
    stored = Model(path=str(path), quantization=HQQ(bits=8)).build()
    assert len(quantized_layers(stored.model)) == 14 and not quantized_layers(plain.model)
    assert torch.equal(stored.head.weight, plain.head.weight)
    assert stored(ANSWERS) == pytest.approx(plain(ANSWERS), abs=0.2)


@pytest.mark.parametrize("adapter", [None, {"name": "lora", "rank": 4}], ids=["full", "lora"])
def test_what_a_run_made_is_a_reward_for_another(tmp_path: Path, adapter: dict[str, object] | None) -> None:
    bench = Bench(tmp_path)
    ppo = {"name": "ppo", "rewards": [{"name": "length", "maximum": 2, "slack": 14}], "max_new_tokens": 8}
    made = bench.run(bench.recipe(ppo, "prompt", max_steps=2) | ({"adapter": adapter} if adapter else {}), "first")
    reward = Model(path=str(made.outcome.output))
    first = reward.build()(ANSWERS)
    assert all(score != 0 for score in first)
    rloo = {"name": "rloo", "rewards": [{"name": "model", "path": str(made.outcome.output)}], "max_new_tokens": 8}
    lines = bench.run(bench.recipe(rloo, "prompt", max_steps=2), "second").metrics
    assert all(line["reward"] == pytest.approx(line["rewards/model/mean"]) != 0 for line in lines if "loss" in line)


def test_what_is_no_reward_model_is_refused(tmp_path: Path, valued: Path) -> None:
    plain = tiny.write_model(tmp_path / "plain", 0)
    with pytest.raises(GymError, match=f"there is no {FILE}"):
        Model(path=str(plain)).build()
    with pytest.raises(GymError, match="has 2 labels"):
        Model(path=str(classifier(tmp_path / "two", labels=2))).build()
    headless = classifier(tmp_path / "headless")
    weights = load_file(headless / "model.safetensors")
    weights.pop("score.weight")
    save_file(weights, headless / "model.safetensors", {"format": "pt"})
    with pytest.raises(GymError, match=r"missing weights: score\.weight"):
        Model(path=str(headless)).build()
    pickled = shutil.copytree(valued, tmp_path / "pickled")
    (pickled / "model.safetensors").rename(pickled / "pytorch_model.bin")
    with pytest.raises(GymError, match="pickle"):
        Model(path=str(pickled)).build()


@pytest.mark.parametrize(
    ("reward", "task", "why"),
    [
        (Model, "token-classification", r"a process reward model[^\n]*\n.*process-model"),
        (ProcessModel, "sequence-classification", r"a whole-answer reward model[^\n]*\n.*name: model"),
    ],
)
def test_a_model_that_learnt_to_score_other_places_is_refused(
    tmp_path: Path, valued: Path, reward: type[Model], task: str, why: str
) -> None:
    """Its head reads any state without an error, and says nothing there."""
    folder = shutil.copytree(valued, tmp_path / "valued")
    (folder / "artifact.json").write_text(json.dumps({"path": ".", "kind": "model", "task": task}))
    with pytest.raises(GymError, match=why):
        reward(path=str(folder)).build()
