"""Every family of transformers: a run computes what transformers computes for each sample alone, beyond every threshold."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from gym_core import GymError
from gym_testkit import families
from gym_torch.attention.segment_attention import NAME, NO_MASK, segment_attention
from gym_torch.model.layout_support import layout_support_of
from gym_torch.model.parameter_groups import groups_of
from gym_torch.model.tasks import answers, probe
from gym_torch.packing import ALONE, PACKED, PADDED, Layout
from gym_torch.segment_spans import Spans

#: Families that people use, and one of each way to differ.
QUICK = {
    **dict.fromkeys(("llama", "llama yarn", "gemma3_text", "phi3", "qwen3", "qwen3_moe", "mixtral", "gpt2"), PACKED),
    **dict.fromkeys(("deepseek_v3", "cohere2", "olmo2", "minicpm3", "glm4_moe"), PACKED),
    **dict.fromkeys(("mamba", "falcon", "falcon_mamba", "stablelm", "nemotron", "bloom", "mpt", "xglm"), PADDED),
    **dict.fromkeys(("openai-gpt", "llama4_text", "qwen2_moe windows", "phimoe windows", "gpt_oss"), PADDED),
    **dict.fromkeys(("bamba", "qwen3_next", "rwkv", "roberta"), PADDED),
    **dict.fromkeys(("deepseek_v32", "glm_moe_dsa", "doge", "phi3 longrope", "llama dynamic"), ALONE),
}
LONG = sorted(set(families.names()) - set(QUICK))


def written() -> dict[str, tuple[str, str]]:
    """Return layout and loss of each family as the page has them."""
    page = Path(__file__).parents[3] / "docs/families.md"
    rows = [
        [cell.strip() for cell in line.split("|")] for line in page.read_text().splitlines() if line.startswith("| ")
    ]
    return {row[1]: (row[2], row[4]) for row in rows}


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in LONG)])
def test_the_loss_of_a_sample_is_that_of_plain_transformers(name: str) -> None:
    found = families.trial(name)
    if name in QUICK:
        assert found.found is not None and found.found.layout is QUICK[name], found
    assert found.error < families.AGREES, found
    if found.found is not None and found.found.layout is not PACKED:
        assert found.found.why
    if name in QUICK or name in written():
        layout = found.found.layout.name if found.found else "not run"
        assert written()[name] == (layout, "agrees" if found.found else ""), "run docs/families.py"


@pytest.mark.parametrize("name", QUICK)
def test_an_optimizer_is_told_each_parameter_once(name: str) -> None:
    """Also where no configuration says how many heads there are."""
    model = families.build(name)
    told = [weight for group in groups_of(model) for _, weight in group["params"]]
    assert len(told) == len(set(told)) and set(told) == set(model.parameters())


@pytest.mark.parametrize("name", ["llama", "qwen3_moe", "gpt_oss", "mamba2", "qwen3_next", "gemma3_text"])
def test_weights_in_bf16_answer_in_fp32_as_if_they_were_in_fp32(name: str) -> None:
    """Also where the code of a family casts what it computes to the precision of a weight."""
    model = families.build(name).bfloat16()
    tokens = torch.tensor([[5, 9, 30, 7, 11, 6, 21, 4]])
    found = answers(lambda asked, given: asked(given, use_cache=False).logits, model, tokens)
    with torch.no_grad():
        wanted = model.float()(tokens, use_cache=False).logits
    assert float((found - wanted).norm() / wanted.norm()) < 1e-5


@pytest.mark.parametrize("name", ["codegen", "rwkv"])
def test_a_configuration_without_a_token_of_padding_is_asked_all_the_same(name: str) -> None:
    assert probe(families.build(name)).dim() == 2


def far(name: str, seed: int = 0, **options: object) -> PreTrainedModel:
    """Return a small model whose thresholds are as large as in life, so that no trial on the model itself reaches them."""
    config = families.shape(name)
    for key, value in options.items():
        setattr(config, key, value)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    return model.eval()


def test_what_routers_choose_by_rounding_does_not_count() -> None:
    """In bf16 a token that is as near to two experts goes to one of them beside others, and to the other one alone."""
    for seed in range(12):
        model = far("qwen3_moe", seed, num_experts=16, initializer_range=0.1).bfloat16()
        assert layout_support_of(model).layout is PACKED


@pytest.mark.parametrize("samples", [None, 100_000])
@pytest.mark.parametrize(
    ("name", "threshold", "layout"),
    [
        ("qwen2_moe windows", "sliding_window", PADDED),
        ("phimoe windows", "sliding_window", PADDED),
        ("llama4_text", "attention_chunk_size", PADDED),
        ("deepseek_v32", "index_topk", ALONE),
        ("phi3 longrope", "original_max_position_embeddings", ALONE),
    ],
)
def test_a_threshold_that_no_trial_on_the_model_reaches_is_seen(
    name: str, threshold: str, layout: Layout, samples: int | None
) -> None:
    model = far(name, **{threshold: 4096})
    rope = model.config.rope_parameters
    if threshold in rope:
        rope[threshold] = 4096
    assert layout_support_of(model, samples).layout is layout


def test_what_no_sample_reaches_does_not_count() -> None:
    model = far("phi3 longrope", original_max_position_embeddings=4096)
    model.config.rope_parameters["original_max_position_embeddings"] = 4096
    assert layout_support_of(model, 4096).layout is PACKED and model.config._attn_implementation == NAME
    assert layout_support_of(model, 4097).layout is ALONE


def test_tokens_that_see_what_they_are_to_predict_are_refused() -> None:
    model = families.build("roberta")
    model.config.is_decoder = False
    with pytest.raises(GymError, match="tokens see those after them"):
        layout_support_of(model)


class Odd(LlamaForCausalLM):
    """A family that cannot be built small."""

    def __init__(self, config: LlamaConfig) -> None:
        if config.hidden_size < 128:
            raise ValueError("too narrow")
        super().__init__(config)


def test_what_cannot_be_tried_out_is_computed_one_by_one() -> None:
    found = layout_support_of(
        Odd(LlamaConfig(hidden_size=128, intermediate_size=64, num_hidden_layers=1, vocab_size=64))
    )
    assert found.layout is ALONE and "too narrow" in found.why


def test_an_option_of_attention_that_nobody_knows_is_no_reason_to_pack() -> None:
    query = torch.randn(1, 2, 4, 8)
    with pytest.raises(GymError, match="biased"):
        segment_attention(torch.nn.Module(), query, query, query, None, spans=Spans([4]), biased=query)


@torch.no_grad()
@pytest.mark.parametrize("name", ["phimoe", "jamba", "olmoe"])
def test_what_a_mixture_tells_its_attention_of_its_router_does_not_matter(name: str) -> None:
    model, tokens = families.build(name).eval(), torch.arange(3, 15)[None]
    wanted = model(tokens, labels=tokens, use_cache=False).loss
    model.set_attn_implementation(NAME)
    where = {"position_ids": torch.arange(12)[None], "attention_mask": NO_MASK, "spans": Spans([12])}
    torch.testing.assert_close(model(tokens, labels=tokens, use_cache=False, **where).loss, wanted)
