"""The engine in the training process: vLLM's `LLM` on the same GPU, given the weights in memory, asleep in training."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from gym_core import GymError, RecipeError
from gym_data.tokenizer import Tokenizer
from gym_rl.rollout_engine import RolloutRequest
from gym_torch.generation.generator import stop_ids
from gym_torch.generation.row import Completion
from gym_torch.model.adapted import AdaptedModel
from gym_torch.model.rope_scaling import refuse_files
from gym_vllm.probe import ARITHMETIC, Probe, apart
from gym_vllm.request import LOGPROBS, SamplingOptions, refuse_routing

if TYPE_CHECKING:
    from gym_vllm import Colocated


class ColocatedEngine:
    """Answers with an engine of its own. What it holds on the GPU while it sleeps is next to nothing."""

    exact = False

    def __init__(
        self,
        config: Colocated,
        *,
        adapted: AdaptedModel,
        tokenizer: Tokenizer,
        path: Path,
        routers: object = None,
        **_: object,
    ) -> None:
        """Start vLLM. Raises GymError where it is not installed or cannot start, RecipeError with several processes."""
        several = torch.distributed.is_available() and torch.distributed.is_initialized()
        if several and torch.distributed.get_world_size() > 1:  # vLLM begins a group of one, which stays behind it
            raise RecipeError(
                "an engine in the training process answers for one process alone",
                key="algorithm.rollouts",
                fix="set `rollouts: {name: vllm}`: a server answers for all of them",
            )
        refuse_routing(routers)
        refuse_files(adapted.model, path)
        self.config, self.adapted = config, adapted
        self.stop, self.decode = stop_ids(adapted.model, tokenizer), tokenizer.decode
        self.vocabulary = int(adapted.model.config.get_text_config().vocab_size)
        self.probe = Probe(tokenizer)
        self.llm, self._params = start(config, path)
        self._awake, self._stale = True, True
        self._rest()

    def refresh(self) -> None:
        """Have the weights handed over before the next answer."""
        self._stale = True

    def generate(self, request: RolloutRequest) -> list[Completion]:
        """Return the completions. Raises GymError where vLLM answers what cannot be."""
        options = SamplingOptions(request, sorted(self.stop), self.decode)
        self._wake()
        params = [self._params(**options.params(*each)) for each in zip(request.streams, request.limits, strict=True)]
        found = self.llm.generate(
            [{"prompt_token_ids": list(prompt)} for prompt in request.prompts], params, use_tqdm=False
        )
        self._rest()
        if len(found) != len(request.prompts):
            raise GymError(
                f"vLLM gave {len(found)} answers to {len(request.prompts)} prompts", key="algorithm.rollouts"
            )
        return [self._read(options, one.outputs[0], limit) for one, limit in zip(found, request.limits, strict=True)]

    def close(self) -> None:
        """Let go of the engine."""
        self.llm = None

    def _read(self, options: SamplingOptions, output: Any, limit: int) -> Completion:
        tokens = list(output.token_ids)
        log_probs = [place[token].logprob for place, token in zip(output.logprobs, tokens, strict=True)]
        return options.completion(tokens, log_probs, limit, self.vocabulary)

    def _wake(self) -> None:
        """Make room first for weights, fill them in, and only then make room for keys and values."""
        if not self._awake:
            torch.cuda.empty_cache()  # what training no longer uses
            self.llm.wake_up(tags=["weights"])
        merged = self.adapted.merged() if self._stale or not self._awake else None
        if merged is not None:
            self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": checkpoint_weights(merged)})
            self.llm.reset_prefix_cache()
        if not self._awake:
            self.llm.wake_up(tags=["kv_cache"])
        self._awake, self._stale = True, False
        if merged is not None:
            self._verify(merged)

    def _verify(self, merged: PreTrainedModel) -> None:
        """Raise GymError where vLLM computes with other weights than it was just given."""
        params = self._params(
            **SamplingOptions(RolloutRequest([], 1, 1.0), sorted(self.stop), self.decode).params(0, 1),
            prompt_logprobs=0,
        )
        (said,) = self.llm.generate([{"prompt_token_ids": self.probe.tokens}], [params], use_tqdm=False)
        found = apart(self.probe.read(said.prompt_logprobs, int), self.probe.of(merged))
        if not found <= ARITHMETIC:
            raise GymError(
                f"vLLM computes with other weights than it was just given: {found:.2g} nats a token apart on a known text",
                key="algorithm.rollouts",
                fix="let it serve the model of the recipe; a newer vLLM may help",
            )

    def _rest(self) -> None:
        if self.config.enable_sleep_mode:
            self.llm.sleep(level=2)  # drops the weights: the trainer has them
            self._awake = False


def checkpoint_weights(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights by the names that they have in checkpoints, tied ones once; a model may fuse them in memory."""
    tied = set(model.all_tied_weights_keys)
    weights = {name: weight.detach() for name, weight in model.state_dict().items() if name not in tied}
    yield from revert_weight_conversion(model, weights).items()


def start(config: Colocated, path: Path) -> tuple[Any, Any]:
    """Return an engine for the model of this directory, and the class of its sampling parameters."""
    # weights are handed over in this process, and its order is repeatable
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    try:
        from vllm import LLM, SamplingParams
    except ImportError as error:
        raise GymError(
            f"vLLM cannot be imported: {error}", key="algorithm.rollouts", fix="pip install 'gym-vllm[vllm]'"
        ) from error
    engine = LLM(
        model=str(path),
        dtype=config.dtype,
        gpu_memory_utilization=config.gpu_memory_utilization,
        max_model_len=config.max_model_len,
        enable_sleep_mode=config.enable_sleep_mode,
        logprobs_mode=LOGPROBS,
        generation_config="vllm",
        seed=0,
    )
    return engine, SamplingParams
