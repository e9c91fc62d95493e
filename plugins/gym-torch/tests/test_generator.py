"""Generation: a row says the same in any company, and rows may leave and enter at any time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
import torch
from gym_torch_decoding import PROMPTS, BareTokenizer, kernels, one_by_one
from transformers import LlamaForCausalLM

from gym_core import GymError
from gym_testkit.architectures import build, ready
from gym_torch.attention.segment_attention import NAME
from gym_torch.generation.generator import Generator, complete
from gym_torch.generation.row import Completion
from gym_torch.generation.shared_prompts import shares
from gym_torch.model.layout_support import layout_for
from gym_torch.packing import PACKED

__all__ = ["kernels"]
pytestmark = pytest.mark.usefixtures("kernels")

GROUPS = [prompt for prompt in PROMPTS[:5] for _ in range(3)]
LIMITS = [1 + (7 * number) % 17 for number in range(len(GROUPS))]


@pytest.mark.parametrize("top_p", [1.0, 0.7])
def test_a_sample_does_not_depend_on_the_batch(top_p: float) -> None:
    def sample(max_batch: int, prompts: list[list[int]], seed: int = 7) -> list[list[int]]:
        made = Generator(ready("qwen3"), BareTokenizer(), max_batch).generate(
            prompts, 10, temperature=1.0, top_p=top_p, seed=seed, stop_ids=[0, 1, 2, 3]
        )
        return [completion.tokens for completion in made]

    together = sample(64, PROMPTS)
    assert together == sample(1, PROMPTS) == sample(3, PROMPTS)
    assert together[:4] == sample(64, PROMPTS[:4])
    assert together != sample(64, PROMPTS, seed=8)
    assert len({len(tokens) for tokens in together}) > 1, "rows should leave at different times"


def test_samples_of_one_prompt_share_it_and_differ() -> None:
    model, prompt = ready("qwen3"), [4, 8, 15, 16, 23, 42]
    computed: list[tuple[int, ...]] = []
    hook = model.register_forward_pre_hook(
        lambda module, args, kwargs: computed.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    made = Generator(model, BareTokenizer()).generate([prompt] * 6, 8, temperature=1.0, stop_ids=[])
    hook.remove()
    assert computed[0] == (1, 6) and computed[1][0] == 6
    assert len({tuple(completion.tokens) for completion in made}) > 3


@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_log_probs_are_of_the_distribution_that_is_drawn_from(top_p: float) -> None:
    model, prompt = ready("llama"), [3, 1, 4, 1, 5]
    (made,) = Generator(model, BareTokenizer()).generate([prompt], 6, temperature=0.7, top_p=top_p, stop_ids=[])
    logits = model(torch.tensor([prompt + made.tokens])).logits[0, len(prompt) - 1 : -1] / 0.7
    if top_p < 1:
        ranked, order = logits.softmax(-1).sort(descending=True)
        cut = torch.zeros_like(logits, dtype=torch.bool).scatter(1, order, ranked.cumsum(1) - ranked >= top_p)
        logits = logits.masked_fill(cut, -torch.inf)
    expected = logits.log_softmax(-1).gather(1, torch.tensor(made.tokens)[:, None]).squeeze(1)
    assert made.log_probs == pytest.approx(expected.tolist(), abs=1e-4)


@pytest.mark.parametrize("family", ["qwen3", "gemma3_text"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_leave_and_enter_and_do_not_notice(family: str, temperature: float) -> None:
    def generate(max_batch: int) -> list[Completion]:
        generator = Generator(ready(family), BareTokenizer(), max_batch)
        return generator.generate(GROUPS, LIMITS, temperature=temperature, stop_ids=[])

    alone = generate(1)
    assert [len(made.tokens) for made in alone] == LIMITS
    for max_batch in (4, 64):
        together = generate(max_batch)
        assert [made.tokens for made in together] == [made.tokens for made in alone]
        for one, other in zip(alone, together, strict=True):
            assert other.log_probs == pytest.approx(one.log_probs, abs=1e-4)


@pytest.mark.parametrize("family", ["qwen3", "llama", "qwen3_moe", "gpt2", "mistral", "gemma2"])
@pytest.mark.parametrize("max_batch", [13, 64])
def test_answers_to_a_long_prompt_share_what_is_kept_of_it(family: str, max_batch: int, kernels: bool) -> None:
    """Prompts of unequal length, so that some are padded; rows of one leave before those of another."""
    model = build(family, None)
    longer = [[1 + (number * number + len(prompt)) % 48 for number in range(60 + 2 * len(prompt))] for prompt in GROUPS]
    plain = Generator(model, BareTokenizer(), max_batch).generate(longer, LIMITS, temperature=1.0, stop_ids=[])
    assert not shares(model, longer)
    assert layout_for(model) is PACKED
    once = shares(model, longer)
    assert once == (family not in ("mistral", "gemma2"))
    widths: list[int] = []
    with model.register_forward_pre_hook(
        lambda module, args, kwargs: widths.append(kwargs["past_key_values"].get_seq_length()), with_kwargs=True
    ):
        made = Generator(model, BareTokenizer(), max_batch).generate(longer, LIMITS, temperature=1.0, stop_ids=[])
    assert (max(widths) < max(LIMITS)) == (once or kernels), "a row keeps its own tokens alone"
    assert [each.tokens for each in made] == [each.tokens for each in plain]
    for one, other in zip(made, plain, strict=True):
        assert one.log_probs == pytest.approx(other.log_probs, abs=1e-4)


@pytest.mark.parametrize("max_batch", [4, 7, 13, 64])
def test_the_batch_is_refilled_and_a_group_computed_once(max_batch: int) -> None:
    model = ready("llama")
    shapes: list[tuple[int, int]] = []
    with model.register_forward_pre_hook(
        lambda module, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    ):
        Generator(model, BareTokenizer(), max_batch, guesses=0).generate(GROUPS, LIMITS, stop_ids=[])
    steps = [rows for rows, new in shapes if new == 1]
    assert max(steps) <= max_batch
    assert sum(steps) == sum(LIMITS) - len(GROUPS), "no row is computed after its last token"
    if max_batch < len(GROUPS):
        assert any(later > earlier for earlier, later in pairwise(steps)), "waiting rows should enter as others leave"
    if max_batch >= 3 * 4:  # a quarter of the batch has room for a group
        assert sum(rows for rows, new in shapes if new > 1) == len(GROUPS) / 3


def test_greedy_does_not_depend_on_the_order_of_prompts() -> None:
    generator = Generator(ready("mistral"), BareTokenizer(), 3)
    forth, back = (generator.generate(prompts, 9) for prompts in (PROMPTS, PROMPTS[::-1]))
    assert [made.tokens for made in forth] == [made.tokens for made in back[::-1]]


def test_a_limit_cuts_a_completion_and_changes_nothing_before_it() -> None:
    generator = Generator(ready("qwen3"), BareTokenizer())
    long = generator.generate(GROUPS, 20, temperature=1.0, stop_ids=[])
    short = generator.generate(GROUPS, LIMITS, temperature=1.0, stop_ids=[])
    assert [made.tokens for made in short] == [made.tokens[:limit] for made, limit in zip(long, LIMITS, strict=True)]


def test_a_model_in_training_is_left_as_it_was() -> None:
    model = LlamaForCausalLM(ready("llama").config).train()
    model.load_state_dict(ready("llama").state_dict())
    wanted = Generator(model, BareTokenizer()).generate(PROMPTS[:2], 5)
    model.set_attn_implementation(NAME)
    made = Generator(model, BareTokenizer()).generate(PROMPTS[:2], 5)
    assert [each.tokens for each in made] == [each.tokens for each in wanted]
    assert model.training and model.config._attn_implementation == NAME
    with (
        pytest.raises(RuntimeError, match="in the middle"),
        model.register_forward_hook(lambda *args: (_ for _ in ()).throw(RuntimeError("in the middle"))),
    ):
        Generator(model, BareTokenizer()).generate(PROMPTS[:2], 5)
    assert model.training


def test_nothing_to_do() -> None:
    generator = Generator(ready("llama"), BareTokenizer())
    assert generator.generate([], 5) == []
    assert generator.generate([[1]], 0) == [Completion()]
    assert [len(made.tokens) for made in generator.generate([[1], [2]], [0, 1])] == [0, 1]
    with pytest.raises(GymError, match="1 limits for 2 prompts"):
        generator.generate([[1], [2]], [3])
    with pytest.raises(GymError, match="a prompt has no tokens"):
        generator.generate([[1], []], 5)


def test_chat() -> None:
    rows = [{"messages": [{"role": "user", "content": text}]} for text in ("5 6 7", "8 9")]
    texts = complete(ready("qwen3"), BareTokenizer(), rows, max_new_tokens=6)
    tokens, _ = one_by_one(ready("qwen3"), [8, 9, 49], 6)
    assert texts[1] == BareTokenizer().decode([token for token in tokens if token != 0])


def test_several_threads_may_generate_with_one_model(kernels: bool) -> None:
    model = build("qwen3", "sdpa").requires_grad_(False)

    def said(_number: int) -> list[list[int]]:
        return [made.tokens for made in Generator(model, BareTokenizer()).generate(PROMPTS[:3], 12, stop_ids=[])]

    expected = said(0)
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(said, range(20))) == [expected] * 20
    assert model.config._attn_implementation == "sdpa"
