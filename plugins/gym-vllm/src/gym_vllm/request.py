"""What vLLM is asked for and what it says, in both engines: tokens in, tokens and their log-probabilities out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gym_core import GymError, RecipeError
from gym_rl.rollout_engine import RolloutRequest
from gym_torch.generation.row import Completion
from gym_torch.generation.sampling import uniform
from gym_torch.generation.stop_strings import StopStrings

LOGPROBS = "processed_logprobs"  #: vLLM's name for log-probabilities at the temperature that is sampled at


@dataclass(frozen=True)
class SamplingOptions:
    """How answers are sampled; everything is said, because a server fills gaps from files of the model."""

    request: RolloutRequest
    stop: Sequence[int]  #: tokens that end an answer; no others do, but texts of the request
    decode: Callable[[Sequence[int]], str]  #: returns the text of tokens

    def params(self, stream: int, limit: int) -> dict[str, Any]:
        """Return the sampling parameters of one answer of at most `limit` tokens, by vLLM's names.

        Each has a seed of its own: with one for all, answers would depend on how they are put into batches.
        """
        return {
            "max_tokens": limit,
            "temperature": self.request.temperature,
            "top_p": self.request.top_p,
            "top_k": self.request.top_k,
            "min_p": self.request.min_p,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "repetition_penalty": 1.0,
            "seed": int(uniform(self.request.seed, stream, 0) * (1 << 53)),
            "logprobs": 0,
            "ignore_eos": True,
            "stop_token_ids": sorted(self.stop),
            "skip_special_tokens": False,
            **({"stop": list(self.request.stop), "include_stop_str_in_output": True} if self.request.stop else {}),
        }

    def completion(self, tokens: Sequence[int], log_probs: Sequence[float], limit: int, vocabulary: int) -> Completion:
        """Return an answer of at most `limit` tokens. Raises GymError when it can be none of this model."""
        strange = [token for token in tokens if not 0 <= token < vocabulary]
        if strange:
            raise GymError(
                f"vLLM answered with token {strange[0]}, and the model has {vocabulary}",
                key="algorithm.rollouts",
                fix="let it serve the model of the recipe",
            )
        if early := [token for token in tokens[:-1] if token in self.stop]:
            raise GymError(
                f"vLLM went on behind token {early[0]}, which ends a turn",
                key="algorithm.rollouts",
                fix="take a vLLM that knows stop_token_ids",
            )
        count, text = StopStrings(self.request.stop, self.decode).end(tokens)
        tokens, log_probs = tokens[:count], log_probs[:count]  # those behind a text, that vLLM may have drawn with it
        token = bool(tokens) and tokens[-1] in self.stop
        finished = token or text is not None
        if not finished and len(tokens) < limit:
            raise GymError(
                f"vLLM ended an answer after {len(tokens)} of {limit} tokens, and none that ends a turn",
                key="algorithm.rollouts",
                fix="raise `max_model_len`, or the server's --max-model-len: prompt and answer must fit into it",
            )
        return Completion(list(tokens), list(log_probs), finished, stop=None if token else text)


def refuse_routing(routers: object) -> None:
    """Raise RecipeError where the experts of each token are asked for."""
    if routers is not None:
        raise RecipeError(
            "vLLM is not asked which experts a token went to",
            key="algorithm.routing_replay",
            fix="set `rollouts: local`, or leave `routing_replay` out",
        )
