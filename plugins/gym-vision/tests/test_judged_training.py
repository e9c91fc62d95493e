"""Learning from judged answers about images is what transformers computes of the same, and goes on exactly."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from asked_images import reference
from judged_rows import BAD, GOOD, IMAGES, LEARNT, conversation
from safetensors.torch import load_file
from torch.nn.functional import logsigmoid
from transformers import AutoModelForImageTextToText, LlamaConfig, LlamaForCausalLM

from gym_core import Artifact, GymError, execute, load_recipe
from gym_data import DatasetConfig, File
from gym_data.prepare import prepare
from gym_data.tokenizer import Tokenizer
from gym_preference import DPO
from gym_preference.pairwise.objective import PairObjective
from gym_preference.reference_cache import key_of
from gym_preference.unpaired.mismatched_responses import MismatchedResponses
from gym_rl.reward_models.config import Model as RewardModel
from gym_rl.rollouts.experience import Rollout
from gym_testkit.vision_models import FAMILIES, TEXT
from gym_torch.batch import apart, unbranched
from gym_torch.generation.generator import Generator
from gym_torch.inputs_beside import inputs_of
from gym_torch.model.auto_class import AutoLanguageModel
from gym_torch.packing import ALONE
from gym_torch.policy import Policy
from gym_torch.prompt_responses import PromptResponses, lay_out
from gym_vision import Vision

EVERY = pytest.mark.parametrize("family", FAMILIES)
SOME = pytest.mark.parametrize("family", ["qwen2_5_vl", "gemma3"])  #: with positions and with masks of their own


@pytest.fixture(scope="module")
def judged(rows):
    """A function that writes the rows of a shape, and returns their file."""

    def write(shape):
        file = rows.with_name(f"{shape}.jsonl")
        file.write_text("".join(json.dumps(row) + "\n" for row in LEARNT[shape]))
        return file

    return write


def prepared(judged, shape, path):
    return prepare(DatasetConfig(sources=[File(path=str(judged(shape)))], media=Vision()), path, shape).train


def opened(path):
    return Policy(AutoLanguageModel.from_pretrained(path, dtype=torch.float32).eval())


def known(exact, given, start, end):
    """Return the sum of the log-probabilities of tokens `start` to `end`, by transformers alone, in float64."""
    given = {name: value.double() if value.is_floating_point() else value for name, value in given.items()}
    found = exact(**given, use_cache=False).logits[0, :-1].log_softmax(-1)
    return found.gather(-1, given["input_ids"][0, 1:, None])[start - 1 : end - 1, 0].sum()


@SOME
def test_loss_and_gradient_of_dpo_are_those_of_transformers(family, model, rows, judged):
    pairs = list(prepared(judged, "preference", model(family)))
    objective, policy = PairObjective(DPO(), ALONE), opened(model(family))
    objective.reference = lambda batch: torch.linspace(-3, -2, len(batch.targets))
    batch = objective.collate(pairs)
    loss, _ = objective.loss(policy, batch)
    loss.backward()

    exact = AutoModelForImageTextToText.from_pretrained(model(family)).double()
    referred, total = batch.sums(torch.linspace(-3, -2, len(batch.targets))), torch.zeros((), dtype=torch.float64)
    for number, (pair, image) in enumerate(zip(pairs, IMAGES, strict=True)):
        ends = pair.shared + pair.chosen, len(pair.tokens) - pair.chosen
        sides = [
            known(exact, reference(model(family), rows, conversation(image, answer)), pair.shared, end - 1)
            for answer, end in zip((GOOD, BAD), ends, strict=True)
        ]
        ratios = [side - referred[2 * number + at].double() for at, side in enumerate(sides)]
        total = total - logsigmoid(0.1 * (ratios[0] - ratios[1]))
    total.backward()
    torch.testing.assert_close(loss.double(), total, rtol=1e-5, atol=1e-6)
    theirs = dict(exact.named_parameters())
    for name, weight in policy.model.named_parameters():
        if theirs[name].grad is not None:
            off = (weight.grad.double() - theirs[name].grad).norm()
            assert off <= 1e-4 * theirs[name].grad.norm() + 1e-6, name


@SOME
def test_completions_are_scored_as_they_were_sampled(family, model, judged):
    """Two completions to each prompt share what is computed of it, and the trainer, which computes them whole, says the same."""
    prompts = [each for each in prepared(judged, "prompt", model(family)) for _ in range(2)]
    policy = opened(model(family))
    asked = [prompt.tokens.tolist() for prompt in prompts]
    made = Generator(policy.model, Tokenizer(model(family)), max_batch=4).generate(
        asked, 6, temperature=1.0, inputs=[prompt.model_inputs for prompt in prompts], stop_ids=prompts[0].input_tokens
    )
    for prompt, answer in zip(prompts, made, strict=True):
        own = np.array(answer.tokens, dtype=np.int32)
        rollout = Rollout("it", 0, prompt, own, np.ones(len(own), dtype=bool), {})
        with torch.no_grad():
            scored = policy(lay_out(ALONE, [PromptResponses(prompt.tokens, (rollout,))], {}))
        torch.testing.assert_close(scored, torch.tensor(answer.log_probs), rtol=0, atol=1e-5)
    assert made[0].tokens != made[1].tokens
    alone = Generator(policy.model, Tokenizer(model(family))).generate(
        asked[3:4], 6, temperature=1.0, streams=[3], inputs=[prompts[3].model_inputs], stop_ids=prompts[0].input_tokens
    )
    assert alone[0].tokens == made[3].tokens


@EVERY
def test_an_answer_that_ends_with_a_token_of_an_image_is_scored_as_transformers_does_before_it(family, model, judged):
    prompt = prepared(judged, "prompt", model(family))[0]
    policy = opened(model(family))
    own = np.array([300, 301, max(prompt.input_tokens)], dtype=np.int32)
    rollout = Rollout("it", 0, prompt, own, np.ones(3, dtype=bool), {})
    before = Rollout("it", 0, prompt, own[:2], np.ones(2, dtype=bool), {})
    with torch.no_grad():
        found, expected = (
            policy(lay_out(ALONE, [PromptResponses(prompt.tokens, (each,))], {})) for each in (rollout, before)
        )
    torch.testing.assert_close(found[:2], expected, rtol=0, atol=1e-5)


def test_parts_of_a_pair_have_its_images(model, judged):
    pair = prepared(judged, "preference", model("llava"))[0]
    _, *sides = apart([pair])[0]
    assert all(inputs_of(side)[1] == pair.inputs_key for side in (*sides, unbranched(pair)))


def test_what_a_reference_said_is_kept_by_the_images_too(model, judged):
    """All answers are alike, and so are the tokens: the images alone tell the pairs apart."""
    pairs = prepared(judged, "preference", model("llava"))
    objective = PairObjective(DPO(), ALONE)
    assert len({pair.tokens.tobytes() for pair in pairs}) == 1
    assert len({key_of(objective.prompt_responses(pair)) for pair in pairs}) == len(pairs)


def test_a_mismatched_response_stands_behind_the_image_of_its_prompt(model, judged):
    samples = prepared(judged, "feedback", model("llava"))
    mixed = MismatchedResponses(samples, seed=0)
    assert [mixed[number].media for number in range(len(samples))] == [sample.media for sample in samples]


GRPO = {
    "name": "grpo",
    "rewards": [{"name": "length", "maximum": 2, "slack": 14}],
    "group_size": 2,
    "max_new_tokens": 5,
    "beta": 0.1,
    "num_mini_batches": 2,
}
RUNS = {
    "dpo": ("preference", {"name": "dpo"}, "lora"),
    "kto": ("feedback", {"name": "kto"}, None),
    "reward_model": ("preference", {"name": "reward_model"}, "lora"),
    "process_reward_model": ("stepwise", {"name": "process_reward_model"}, None),
    "ppo": ("prompt", {**GRPO, "name": "ppo", "num_mini_batches": 1}, None),
    "grpo": ("prompt", GRPO, None),
}


def learnt(name, model, judged, output, steps):
    shape, algorithm, adapter = RUNS[name]
    recipe = {
        "model": {"path": str(model("qwen2_5_vl")), "compile": False},
        "data": {"sources": [str(judged(shape))], "media": "vision"},
        "algorithm": algorithm,
        "scheduler": "constant",
        "train": {"max_steps": steps, "batch_size": 4, "learning_rate": 1e-2, "precision": "fp32", "save_every": 1},
        "output": str(output),
    }
    execute(load_recipe(recipe | ({"adapter": adapter} if adapter else {})))
    return _weights(output / "model")


@pytest.mark.parametrize("name", ["dpo", "grpo"])
def test_a_run_goes_on_exactly(name, model, judged, tmp_path):
    """That of `grpo` is parted between the two steps of a round."""
    one = learnt(name, model, judged, tmp_path / "whole", 3)
    learnt(name, model, judged, tmp_path / "parted", 1)
    other = learnt(name, model, judged, tmp_path / "parted", 3)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize("name", [name for name in RUNS if name != "grpo"])
def test_a_run_learns_in_the_language_model_alone(name, model, judged, tmp_path):
    found, base = learnt(name, model, judged, tmp_path / "out", 1), _weights(model("qwen2_5_vl"))
    changed = {key for key in found if key not in base or not torch.equal(found[key], base[key])}
    assert changed
    assert not any("visual" in key for key in changed)


def test_a_reference_that_takes_text_alone_is_refused(model, judged, tmp_path):
    """It would score the answers to images that it never saw, or fail in the middle of the run."""
    for file in model("llava").glob("token*"):
        shutil.copy(file, tmp_path)
    LlamaForCausalLM(LlamaConfig(**TEXT, vocab_size=Tokenizer(model("llava")).vocab_size)).save_pretrained(tmp_path)
    recipe = {
        "model": {"path": str(model("llava")), "compile": False},
        "data": {"sources": [str(judged("preference"))], "media": "vision"},
        "algorithm": {"name": "dpo", "ref_model": str(tmp_path)},
        "train": {"max_steps": 1},
        "output": str(tmp_path / "out"),
    }
    with pytest.raises(GymError, match=r"algorithm\.ref_model: LlamaForCausalLM takes text alone"):
        execute(load_recipe(recipe))


def test_a_reward_model_of_images_says_what_judges_instead(model, tmp_path):
    path = shutil.copytree(model("llava"), tmp_path / "reward")
    Artifact(path, details={"media": "gym_vision:Vision"}, task="sequence-classification").record()
    with pytest.raises(GymError, match="have a function or an endpoint judge"):
        RewardModel(path=str(path)).build()


def test_a_reference_that_is_given_other_pixels_by_its_processor_is_refused(model, judged, tmp_path):
    """Both would look at the pixels that the processor of the first makes, which mean something else to the second."""
    other = shutil.copytree(model("llava"), tmp_path / "other")
    for file in other.glob("*processor_config.json"):
        told = json.loads(file.read_text())
        told.get("image_processor", told)["image_mean"] = [0.1, 0.2, 0.3]
        file.write_text(json.dumps(told))
    recipe = {
        "model": {"path": str(model("llava")), "compile": False},
        "data": {"sources": [str(judged("preference"))], "media": "vision"},
        "algorithm": {"name": "dpo", "ref_model": str(other)},
        "train": {"max_steps": 1},
        "output": str(tmp_path / "out"),
    }
    with pytest.raises(GymError, match=r"algorithm\.ref_model: its processor makes something else of an image"):
        execute(load_recipe(recipe))
    shutil.copytree(model("llava"), other, dirs_exist_ok=True)
    execute(load_recipe(recipe | {"output": str(tmp_path / "same")}))


def _weights(folder):
    found = {}
    for file in folder.glob("*.safetensors"):
        found |= {f"{file.name}/{key}": value for key, value in load_file(file).items()}
    return found
