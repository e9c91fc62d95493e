"""What needs torch and transformers: loading, encoding, the chat template, a first answer."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from gym_tiny.family import MODEL
from gym_tiny.tasks import generate, rows

ODD_TEXTS = (
    "",
    " ",
    "plain words, 1234567890!",
    "tabs\tand\r\nlines\n\n\n   blanks   ",
    "Zürich naïve Ελλάδα Привет שלום مرحبا हिन्दी 日本語 한국어",
    "👩‍🚀🏳️‍🌈 ½ ≠ ∑ 🂡 \u200b\u202e",
    "e\u0301 is not é",
    "\x00\x01\x7f\ufffd\U0010ffff",
    "{\"a\": [1, 2, {'b': null}]} <tool> <|nothing|> </im_end>",
)


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(MODEL)


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()


@pytest.mark.parametrize("text", ODD_TEXTS)
def test_any_text_survives(tokenizer, text):
    assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_every_byte_survives(tokenizer):
    text = "".join(chr(point) for point in range(0x20, 0x3000) if not 0xD800 <= point < 0xE000)
    assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_decoding_drops_control_tokens_and_keeps_markup(tokenizer):
    ids = tokenizer("<|im_start|><think>a</think><tool_call>b</tool_call><|im_end|><|endoftext|>").input_ids
    assert len(ids) == 9
    assert tokenizer.decode(ids, skip_special_tokens=True) == "<think>a</think><tool_call>b</tool_call>"


def test_template_writes_every_role(tokenizer):
    call = {"type": "function", "function": {"name": "get_time", "arguments": {"city": "Rome"}}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Time in Rome?"},
        {"role": "assistant", "content": "", "reasoning_content": "a tool", "tool_calls": [call, call]},
        {"role": "tool", "content": "12:00"},
        {"role": "tool", "content": "12:01"},
        {"role": "assistant", "content": "Noon."},
        {"role": "user", "content": "Thanks."},
    ]
    tool = {"type": "function", "function": {"name": "get_time"}}
    text = tokenizer.apply_chat_template(messages, tools=[tool], add_generation_prompt=True, tokenize=False)
    written = '<tool_call>\n{"name": "get_time", "arguments": {"city": "Rome"}}\n</tool_call>'
    assert text == (
        f"<|im_start|>system\nBe brief.\nTools:\n{json.dumps(tool)}<|im_end|>\n"
        "<|im_start|>user\nTime in Rome?<|im_end|>\n"
        f"<|im_start|>assistant\n<think>\na tool\n</think>\n\n{written}\n{written}<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n12:00\n</tool_response>\n<tool_response>\n12:01\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\nNoon.<|im_end|>\n"
        "<|im_start|>user\nThanks.<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    as_text = [json.loads(json.dumps(message)) for message in messages]
    for entry in as_text[2]["tool_calls"]:
        entry["function"]["arguments"] = json.dumps(entry["function"]["arguments"])
    assert tokenizer.apply_chat_template(as_text, tools=[tool], add_generation_prompt=True, tokenize=False) == text


def test_a_prompt_is_the_beginning_of_its_conversation(tokenizer):
    for row in rows(None, 35):
        whole = tokenizer.apply_chat_template(row["messages"], tools=row.get("tools"), tokenize=False)
        prompt = tokenizer.apply_chat_template(
            row["messages"][:-1], tools=row.get("tools"), add_generation_prompt=True, tokenize=False
        )
        assert whole.startswith(prompt)


def test_marks_hold_what_the_assistant_writes(tokenizer):
    for task in generate(None, 35):
        row = task.row()
        encoded = tokenizer.apply_chat_template(
            [*row["messages"], *row["messages"]],
            tools=row.get("tools"),
            return_dict=True,
            return_assistant_tokens_mask=True,
        )
        marked = zip(encoded["input_ids"], encoded["assistant_masks"], strict=True)
        trained = tokenizer.decode([token for token, mask in marked if mask])
        assert trained == f"{task.answer}<|im_end|>" * 2


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "nurse", "content": "x"}],
        [{"role": "user", "content": "x"}, {"role": "system", "content": "y"}],
    ],
)
def test_template_refuses_what_it_does_not_know(tokenizer, messages):
    with pytest.raises(Exception, match=r"role|first"):
        tokenizer.apply_chat_template(messages, tokenize=False)


def test_the_model_loads_and_ends_its_answer(model, tokenizer):
    assert 1_000_000 <= sum(parameter.numel() for parameter in model.parameters()) <= 5_000_000
    assert model.config.tie_word_embeddings and model.config.model_type == "qwen3"
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is 3 + 4?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    written = model.generate(**prompt, max_new_tokens=16)[0, prompt["input_ids"].shape[1] :]
    assert written[-1] == tokenizer.eos_token_id
