"""Generation: a row says the same in any company, and rows may leave and enter at any time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaForCausalLM, PreTrainedModel

from gym_core import GymError
from gym_torch.generator import Completion, Generator, complete
from gym_torch.sampling import choose, uniform

torch.set_num_threads(1)
PROMPTS = [[number % 49 + 1 for number in range(start, start * 2 + 3)] for start in (1, 7, 3, 12, 5, 2, 9, 4)]
KINDS = ["qwen3", "llama", "sliding", "gpt2"]


@dataclass(frozen=True)
class Words:
    """A tokenizer of numbers."""

    eos_id: int = 0
    pad_id: int = 0

    def chat(
        self, messages: list[dict[str, str]], tools: None = None, generation_prompt: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        ids = [int(word) for message in messages for word in message["content"].split()]
        return np.array(ids + [49] * generation_prompt, np.int32), np.zeros(len(ids) + generation_prompt, bool)

    def decode(self, ids: list[int]) -> str:
        return " ".join(map(str, ids))


@cache
def model_of(kind: str) -> PreTrainedModel:
    options = {
        "vocab_size": 50, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "initializer_range": 0.3, "eos_token_id": 0, "pad_token_id": 0,
    }  # fmt: skip
    if kind == "sliding":
        options |= {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
    if kind == "gpt2":
        options = {
            "vocab_size": 50,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "initializer_range": 0.3,
            "eos_token_id": 0,
        }
    config = AutoConfig.for_model("qwen3" if kind == "sliding" else kind, **options)
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).eval()


@torch.no_grad()
def one_by_one(model: PreTrainedModel, prompt: list[int], most: int) -> tuple[list[int], list[float]]:
    """Decode greedily without a cache and without a batch."""
    tokens, log_probs = list(prompt), []
    while len(tokens) < len(prompt) + most and (len(tokens) == len(prompt) or tokens[-1] != 0):
        after = model(torch.tensor([tokens])).logits[0, -1].log_softmax(-1)
        tokens.append(int(after.argmax()))
        log_probs.append(float(after.max()))
    return tokens[len(prompt) :], log_probs


@pytest.mark.parametrize("max_batch", [1, 3, 64])
@pytest.mark.parametrize("kind", KINDS)
def test_greedy_is_one_by_one(kind: str, max_batch: int) -> None:
    found = Generator(model_of(kind), Words(), max_batch).generate(PROMPTS, 12)
    for prompt, completion in zip(PROMPTS, found, strict=True):
        tokens, log_probs = one_by_one(model_of(kind), prompt, 12)
        assert completion.tokens == tokens
        assert completion.log_probs == pytest.approx(log_probs, abs=1e-4)
        assert completion.finished == (tokens[-1] == 0)


@pytest.mark.parametrize("top_p", [1.0, 0.7])
def test_a_sample_does_not_depend_on_the_batch(top_p: float) -> None:
    def sample(max_batch: int, prompts: list[list[int]], seed: int = 7) -> list[list[int]]:
        made = Generator(model_of("qwen3"), Words(), max_batch).generate(
            prompts, 10, temperature=1.0, top_p=top_p, seed=seed, stop_ids=[0, 1, 2, 3]
        )
        return [completion.tokens for completion in made]

    together = sample(64, PROMPTS)
    assert together == sample(1, PROMPTS) == sample(3, PROMPTS)
    assert together[:4] == sample(64, PROMPTS[:4])
    assert together != sample(64, PROMPTS, seed=8)
    assert len({len(tokens) for tokens in together}) > 1, "rows should leave at different times"


def test_samples_of_one_prompt_share_it_and_differ() -> None:
    model, prompt = model_of("qwen3"), [4, 8, 15, 16, 23, 42]
    computed: list[tuple[int, ...]] = []
    hook = model.register_forward_pre_hook(
        lambda module, args, kwargs: computed.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    made = Generator(model, Words()).generate([prompt] * 6, 8, temperature=1.0)
    hook.remove()
    assert computed[0] == (1, 6) and computed[1][0] == 6
    assert len({tuple(completion.tokens) for completion in made}) > 3


def test_log_probs_are_of_the_tempered_distribution() -> None:
    model, prompt = model_of("llama"), [3, 1, 4, 1, 5]
    (made,) = Generator(model, Words()).generate([prompt], 6, temperature=0.7, top_p=0.9, stop_ids=[])
    logits = model(torch.tensor([prompt + made.tokens])).logits[0, len(prompt) - 1 : -1]
    expected = (logits / 0.7).log_softmax(-1).gather(1, torch.tensor(made.tokens)[:, None]).squeeze(1)
    assert made.log_probs == pytest.approx(expected.tolist(), abs=1e-4)


def test_sampling_follows_the_distribution() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0])
    count = 20_000
    tokens, _ = choose(logits.expand(count, 4), 0.5, 1.0, [uniform(1, number, 3) for number in range(count)])
    shares = tokens.bincount(minlength=4) / count
    assert torch.allclose(shares, (logits / 0.5).softmax(-1), atol=0.01)
    tokens, _ = choose(logits.expand(count, 4), 1.0, 0.8, [uniform(2, number, 3) for number in range(count)])
    shares = tokens.bincount(minlength=4) / count
    assert torch.allclose(shares[:2], logits[:2].softmax(-1), atol=0.01) and shares[2:].sum() == 0


def test_the_model_is_left_as_it_was() -> None:
    model = model_of("llama").train()
    Generator(model, Words()).generate(PROMPTS[:2], 2)
    assert model.training
    model.eval()


def test_nothing_to_do() -> None:
    generator = Generator(model_of("llama"), Words())
    assert generator.generate([], 5) == []
    assert generator.generate([[1]], 0) == [Completion()]
    with pytest.raises(GymError, match="a prompt has no tokens"):
        generator.generate([[1], []], 5)


def test_a_recurrent_model_is_refused() -> None:
    model = LlamaForCausalLM(model_of("llama").config)
    model.config = AutoConfig.for_model("qwen3_next", vocab_size=50, hidden_size=32, num_hidden_layers=2)
    with pytest.raises(GymError, match="does not know linear_attention layers"):
        Generator(model, Words())


def test_chat() -> None:
    rows = [{"messages": [{"role": "user", "content": text}]} for text in ("5 6 7", "8 9")]
    texts = complete(model_of("qwen3"), Words(), rows, max_new_tokens=6)
    tokens, _ = one_by_one(model_of("qwen3"), [8, 9, 49], 6)
    assert texts[1] == Words().decode([token for token in tokens if token != 0])
