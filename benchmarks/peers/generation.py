"""One run of one generator in a process of its own: greedy answers of one length to prompts of one length, in bf16."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

from peers.process import Result, Spec, accelerated, held, peak, serve


@dataclass(kw_only=True)
class Generated(Result):
    """What came of it; `seconds` are of rounds, each of which answers all prompts."""

    tokens: int  #: in a round

    def speed(self, skip: int) -> float:
        """Return tokens a second, without the first rounds, which warm up."""
        return self.tokens * len(self.seconds[skip:]) / sum(self.seconds[skip:])


@dataclass(kw_only=True)
class Generating(Spec):
    """Prompts and how to answer them; `rows` of them at once, in `steps` rounds."""

    result: ClassVar[type[Result]] = Generated

    prompts: str  #: `prompt`, a list of messages, a line each
    longest: int  #: tokens of an answer, which nothing ends before
    graphs: bool = True  #: whether steps of Gym may be CUDA graphs


def gym(spec: Generating) -> Generated:
    """Answer with Gym's generator."""
    from gym_torch.generation import generator, passes

    before, (model, prompts) = held(), _material(spec)
    made = generator.Generator(model, None, max_batch=spec.rows)
    graphs = passes.graphs_for if spec.graphs else lambda model: None
    with patch.object(passes, "graphs_for", graphs):
        return _timed(spec, before, lambda: made.generate(prompts, spec.longest, stop_ids=()))


def transformers(spec: Generating) -> Generated:
    """Answer with `generate` of transformers and a static cache, which it compiles for."""
    import torch

    before, (model, prompts) = held(), _material(spec)
    given = torch.tensor(prompts, device=model.device)
    options = {"do_sample": False, "cache_implementation": "static", "eos_token_id": None, "pad_token_id": 0}
    length = {"max_new_tokens": spec.longest, "min_new_tokens": spec.longest}
    return _timed(spec, before, lambda: model.generate(given, **options, **length))


def _material(spec: Generating) -> tuple[Any, list[list[int]]]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(spec.model, dtype=torch.bfloat16).eval()
    tokenizer = AutoTokenizer.from_pretrained(spec.model)
    lines = [json.loads(line)["prompt"] for line in Path(spec.prompts).read_text(encoding="utf-8").splitlines()]
    prompts = [
        tokenizer.apply_chat_template(line, add_generation_prompt=True, return_dict=False)
        for line in lines[: spec.rows]
    ]
    return model.to("cuda" if accelerated() else "cpu"), prompts


def _timed(spec: Generating, before: int, work: Any) -> Generated:
    seconds = []
    for _ in range(spec.steps):
        began = time.perf_counter()
        work()  # whose answers are read, which waits for the device
        if accelerated():
            import torch

            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    tokens = spec.rows * spec.longest
    return Generated(seconds=seconds, losses=[], norms=[], base_bytes=before, peak_bytes=peak(), tokens=tokens)


if __name__ == "__main__":
    serve({"gym": gym, "transformers": transformers}, Generating)
