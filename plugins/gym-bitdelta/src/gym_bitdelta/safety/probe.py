"""How models answer harmful prompts, how a reward judges the answers, and how useful a model is: each for the gate."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from gym_bitdelta.safety.options import SafetyOptions
from gym_bitdelta.safety.prompts import Prompt
from gym_core import GymError
from gym_core.files import expanded
from gym_data.sources.files import hash_file
from gym_data.tokenizer import Tokenizer
from gym_quant.post_training.calibration import Rows
from gym_rewards.reward import RewardInput
from gym_rewards.reward_manager import RewardManager
from gym_rewards.reward_names import called, named
from gym_torch.generation.generator import Generator
from gym_torch.generation.row import Completion

JUDGE_SECONDS = 3600.0  #: for all answers of a model
KEY = "quantization.safety_judge"


class Answers:
    """Answers greedily, as the model would be asked in a chat."""

    def __init__(self, tokenizer: Tokenizer, most: int) -> None:
        """Take the tokenizer of the fine-tune, and the most tokens of an answer."""
        self._tokenizer, self._most = tokenizer, most
        self._known: dict[str, list[int]] = {}  # the same prompts are asked of model after model

    def __call__(self, model: PreTrainedModel, prompts: Sequence[Prompt]) -> list[RewardInput]:
        """Return an answer to each prompt, as judges are given it.

        Raises GymError where the template refuses a prompt, the model has no such tokens, or what it computes is no number: such
        a model answers something all the same, which a judge may take for a refusal.
        """
        texts = [self._tokens(prompt) for prompt in prompts]
        beyond = max(map(max, texts)) - model.get_input_embeddings().weight.shape[0]
        if beyond >= 0:
            raise GymError(
                "the prompts have tokens that the base has no embedding for",
                where=model.name_or_path,
                key="quantization.safety_prompts",
                fix="use a chat template of tokens that the base knows, or leave the prompts out",
            )
        made = Generator(model, self._tokenizer).generate(texts, self._most)
        if not all(math.isfinite(each) for one in made for each in one.log_probs):
            raise GymError("what the model computes is no number, so it cannot be judged", where=model.name_or_path)
        return [self._input(prompt, one) for prompt, one in zip(prompts, made, strict=True)]

    def _tokens(self, prompt: Prompt) -> list[int]:
        if prompt.id in self._known:
            return self._known[prompt.id]
        try:
            tokens, _ = self._tokenizer.chat([dict(one) for one in prompt.messages], generation_prompt=True)
        except ValueError as error:
            raise GymError(
                f"the chat template refuses a prompt: {error}", where=prompt.id, key="quantization.safety_prompts"
            ) from None
        return self._known.setdefault(prompt.id, [int(token) for token in tokens])

    def _input(self, prompt: Prompt, made: Completion) -> RewardInput:
        text = self._tokenizer.decode(made.said, skip_special=True)
        return RewardInput(
            text, prompt.row, prompt.messages, prompt.id, len(made.tokens), made.finished, tuple(made.tokens)
        )


class RewardJudge:
    """Says which answers comply: those that a reward scores high enough."""

    def __init__(self, options: SafetyOptions) -> None:
        """Build the reward. Raises GymError where it cannot be built."""
        self._least = options.safety_judge_threshold
        with _as_judge():
            self._manager = RewardManager(named([options.safety_judge]), JUDGE_SECONDS)

    def __call__(self, prompts: Sequence[Any], answers: Sequence[RewardInput]) -> list[bool]:
        """Return whether each answer complies. Raises GymError where the reward raises or says nothing of one."""
        with _as_judge():
            (scores,) = self._manager(answers).scores.values()
        said = [score for score in scores if score is not None]
        if len(said) < len(scores):
            silent = next(one.id for one, score in zip(answers, scores, strict=True) if score is None)
            raise GymError(
                "the judge says nothing of an answer", where=silent, key=KEY, fix="choose one that judges all"
            )
        return [score >= self._least for score in said]

    def close(self) -> None:
        """End the processes of the reward."""
        self._manager.close()


@contextmanager
def _as_judge() -> Iterator[None]:
    """Name the key of the judge in errors of rewards, which otherwise name that of an algorithm."""
    try:
        yield
    except GymError as error:
        fix = "mend the judge, or choose another; what was trained is there"
        raise GymError([replace(each, key=KEY, fix=fix) for each in error.problems]) from error


def judge_identity(options: SafetyOptions) -> dict[str, Any]:
    """Return what decides the judgements, as plain data: the reward, its package and options, and files that these name."""
    judge = options.safety_judge
    said = judge.model_dump(mode="json")
    files = {name: hash_file(path) for name, path in _files(said)}
    return {
        "name": called(judge),
        "options": {key: value for key, value in said.items() if value is not None},
        "files": files,
        "threshold": options.safety_judge_threshold,
    }


def _files(said: Any) -> Iterator[tuple[str, Path]]:
    """Yield what among options is a file, as in `rules.json` and `judge.py:function`."""
    if isinstance(said, Mapping):
        for value in said.values():
            yield from _files(value)
    elif isinstance(said, list):
        for value in said:
            yield from _files(value)
    elif isinstance(said, str) and len(said) < 1000 and "\0" not in said:
        for name in dict.fromkeys((said, said.rpartition(":")[0])):
            if name and (path := expanded(name)).is_file():
                yield name, path


def likelihood(rows: Rows) -> Callable[[PreTrainedModel], float]:
    """Return the utility of models: the geometric mean of the probabilities of the tokens that training predicts."""

    @torch.no_grad()
    def measured(model: PreTrainedModel) -> float:
        total, count = 0.0, 0
        if int(rows.tokens.max()) >= model.get_input_embeddings().weight.shape[0]:
            return 0.0  # a base without the tokens that its fine-tune added
        for part in rows.batches():
            logits = model(rows.tokens[part], use_cache=False).logits
            wanted = rows.predicts[part]
            labels = rows.tokens[part].roll(-1, 1)[wanted]
            found = logits[wanted].float().log_softmax(-1).gather(1, labels[:, None])
            total += float(found.sum(dtype=torch.float64))
            count += len(labels)
        mean = math.exp(total / max(1, count))
        if not math.isfinite(mean):
            raise GymError("what the model computes is no number", where=model.name_or_path)
        return mean

    return measured
