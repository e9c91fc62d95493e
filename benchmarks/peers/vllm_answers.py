"""What vLLM computes with checkpoints, in an environment that holds it alone: `python vllm_answers.py SPEC`, options as JSON.

Nothing of Gym is imported here. `nox -s vllm` makes the environment.
"""

from __future__ import annotations

import json
import os
import sys

os.environ.update(HF_HUB_OFFLINE="1", VLLM_CPU_KVCACHE_SPACE="1", VLLM_LOGGING_LEVEL="ERROR")

from vllm import LLM, SamplingParams


def main() -> None:
    """Print, for each row of tokens, the log-probability that the model gives each but the first."""
    spec = json.loads(sys.argv[1])
    spoken = os.dup(1)
    os.dup2(2, 1)  # whatever vLLM prints goes to the standard error
    engine = LLM(model=spec["model"], enforce_eager=True, max_model_len=256, dtype=spec["dtype"])
    prompts = [{"prompt_token_ids": row} for row in spec["rows"]]
    found = engine.generate(prompts, SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0))
    answers = [
        [each[token].logprob for token, each in zip(row[1:], one.prompt_logprobs[1:], strict=True)]
        for row, one in zip(spec["rows"], found, strict=True)
    ]
    os.write(spoken, json.dumps(answers).encode())


if __name__ == "__main__":
    main()
