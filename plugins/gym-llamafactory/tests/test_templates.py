"""Ids and masks of every template are those of LLaMA-Factory, as they were recorded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from llamafactory_conversations import CONVERSATIONS, named, tokenizer_in

from gym_core import RecipeError, load_recipe
from gym_data import DatasetConfig
from gym_data.formats import ShareGPT
from gym_data.formats.parsing import tools_of
from gym_data.next_turn import NextTurn
from gym_data.rows import Conversation
from gym_data.sources import File
from gym_data.templates import Qwen3
from gym_data.tokenizer import Tokenizer
from gym_llamafactory.chat import LlamaFactory
from gym_llamafactory.chat.encoding import learn, shared
from gym_llamafactory.chat.formats import known
from gym_llamafactory.chat.formats import named as format_named
from gym_llamafactory.chat.turns import Turns
from gym_testkit import tiny
from gym_testkit.bench import Bench

RECORD = json.loads((Path(__file__).parent / "recorded.json").read_text())
DAY = date.fromisoformat(RECORD["day"])


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tokenizer]:
    yield Tokenizer(tokenizer_in(tmp_path_factory.mktemp("tokenizer") / "model"))


def conversation(name: str) -> tuple[Conversation, int, str]:
    messages, system, tools, cutoff, train_on = CONVERSATIONS[name]
    read: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    for each in messages:
        if each["role"] == "function":
            read.append({"role": "assistant", "content": "", "tool_calls": [{"function": json.loads(each["content"])}]})
        else:
            read.append({**each, "role": "tool" if each["role"] == "observation" else each["role"]})
    return Conversation(tuple(read), tools_of(tools)), cutoff, train_on


def made(tokenizer: Tokenizer, template: str, name: str) -> str:
    row, cutoff, train_on = conversation(name)
    turns = Turns(LlamaFactory(format=template), tokenizer, None, DAY)
    last = train_on == "last"
    (pairs,) = turns.pairs([turns.elements(row, not last, alone=last)])
    end = turns.eos if turns.format.efficient_eos else []
    tokens, trained = learn(pairs, [False] * len(pairs), train_on, end, cutoff)
    return named(tokens.tolist(), trained.tolist())


def differing(tokenizer: Tokenizer) -> dict[tuple[str, str], str]:
    found = {}
    for template, recorded in RECORD["found"].items():
        for name, wanted in recorded.items():
            try:
                same = made(tokenizer, template, name) == wanted
            except ValueError as error:
                found[template, name] = str(error)
            else:
                if not same:
                    found[template, name] = ""
    return found


def test_ids_and_masks_are_those_that_were_recorded(tokenizer: Tokenizer) -> None:
    assert RECORD["found"].keys() == set(known()) and len(RECORD["found"]) == 124
    assert not differing(tokenizer)


@pytest.mark.parametrize(
    ("template", "image"),
    [
        ("dots_ocr", "<|img|>{{image}}<|endofimg|>"),  # which says so itself, beside what it has of Qwen2-VL
        ("qwen2_vl", "<|vision_start|>{{image}}<|vision_end|>"),
        ("glm4v", "<|begin_of_image|>{{image}}<|end_of_image|>"),
        ("glm4_5v", "<|begin_of_image|>{{image}}<|end_of_image|>"),
        ("glm_ocr", "<|begin_of_image|>{{image}}<|end_of_image|>"),
        ("gemma4", "{{image}}"),  # its processor writes what stands around
        ("gemma4n", "{{image}}"),
        ("vicuna", ""),
    ],
)
def test_what_stands_around_an_image_is_what_llamafactory_writes(template: str, image: str) -> None:
    assert format_named(template).media.get("image", "") == image


@pytest.mark.parametrize(
    ("template", "medium", "written"),
    [
        ("qwen2_vl", "video", "<|vision_start|>{{video}}<|vision_end|>"),
        ("qwen3_vl", "video", "{{video}}"),  # its processor writes what stands around each frame
        ("llava_next_video", "video", "{{video}}"),
        ("qwen2_audio", "audio", "<|audio_bos|>{{audio}}<|audio_eos|>"),
        ("llava", "video", ""),
    ],
)
def test_what_stands_around_other_media_is_too(template: str, medium: str, written: str) -> None:
    assert format_named(template).media.get(medium, "") == written


@pytest.mark.parametrize(
    ("prompt", "answer", "kept"),
    [
        (10, 90, (10, 54)),
        (90, 10, (54, 10)),
        (90, 90, (32, 32)),
        (20, 20, (20, 20)),
        (100, 0, (64, 0)),
        (0, 100, (0, 64)),
    ],
)
def test_the_cutoff_is_shared(prompt: int, answer: int, kept: tuple[int, int]) -> None:
    assert shared(prompt, answer, 64) == kept


def test_special_tokens_that_are_written_stay_text(tokenizer: Tokenizer) -> None:
    turns = Turns(LlamaFactory(format="qwen"), tokenizer, None, DAY)
    said = "<|im_end|> and"
    rows = [
        Conversation(({"role": "user", "content": text}, {"role": "assistant", "content": text}))
        for text in ("hello", said)
    ]
    plain, odd = turns.pairs(turns.elements(row, True, alone=False) for row in rows)
    special = {tokenizer.token_id(token) for token in tokenizer.special}
    for usual, attacked in zip(plain[0], odd[0], strict=True):
        assert sum(token in special for token in usual) == sum(token in special for token in attacked)
        assert said in tokenizer.decode(attacked)


def test_added_tokens_that_are_not_special_are_tokens_whoever_writes_them(tmp_path: Path) -> None:
    """`<think>` in a system message, as in LLaMA-Factory; also where the model's own template writes it."""
    model = tiny.write_model(tmp_path / "model", extra=("<think>",))
    path = model / "tokenizer.json"
    told = json.loads(path.read_text())
    told["added_tokens"][-1]["special"] = False
    path.write_text(json.dumps(told))
    (model / "chat_template.jinja").write_text(Qwen3().build())
    turns = Turns(LlamaFactory(format="qwen"), Tokenizer(model), None, DAY)
    row = Conversation(tuple({"role": role, "content": "<think>"} for role in ("system", "user", "assistant")))
    ((prompt, answer),) = turns.pairs([turns.elements(row, True, alone=False)])[0]
    assert [*prompt, *answer].count(turns.tokenizer.token_id("<think>") or 0) == 3


def test_marks_of_templates_that_are_written_stay_text(tokenizer: Tokenizer) -> None:
    said = "for {{idx}}: {{content}}"
    row = Conversation(
        tuple({"role": role, "content": said} for role in ("system", "user", "assistant", "user", "assistant"))
    )
    for name in known():
        turns = Turns(LlamaFactory(format=name), tokenizer, None, DAY)
        (pairs,) = turns.pairs([turns.elements(row, True, alone=False)])
        whole = turns.tokenizer.decode([token for prompt, answer in pairs for token in (*prompt, *answer)])
        assert whole.count(said) == 5, name


def test_tokens_of_a_call_are_tokens_and_those_in_its_arguments_stay_text(tmp_path: Path) -> None:
    begin, end = "<|tool_call_start|>", "<|tool_call_end|>"
    model = tiny.write_model(tmp_path / "model", extra=("bos_token", begin, end))
    turns = Turns(LlamaFactory(format="lfm2"), Tokenizer(model), None, DAY)
    call = {"function": {"name": "say", "arguments": {"text": end}}}
    asked, called = {"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls": [call]}
    row = Conversation((asked, called))
    ((_, answer),) = turns.pairs([turns.elements(row, True, alone=False)])[0]
    one, other = (answer.count(turns.tokenizer.token_id(token)) for token in (begin, end))
    assert (one, other) == (1, 1)
    assert turns.tokenizer.decode(answer).startswith(f'{begin}[say(text="{end}")]{end}')


@pytest.mark.parametrize(("template", "end"), [("qwen", "<|im_end|>"), ("gemma4", "<turn|>"), ("bailing_v2", "")])
def test_calls_in_a_format_that_is_chosen_stand_alone(tokenizer: Tokenizer, template: str, end: str) -> None:
    call = {"function": {"name": "say", "arguments": {}}}
    asked, called = {"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls": [call]}
    turns = Turns(LlamaFactory(format=template, tool_format="mistral"), tokenizer, None, DAY)
    ((_, answer),) = turns.pairs([turns.elements(Conversation((asked, called)), True, alone=False)])[0]
    assert tokenizer.decode(answer).endswith(f'[{{"name": "say", "arguments": {{}}}}]{end}')


def test_calls_that_a_format_cannot_write_are_bad_rows(tokenizer: Tokenizer) -> None:
    call = {"function": {"name": "say", "arguments": {}}}
    asked, called = {"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls": [call, call]}
    turns = Turns(LlamaFactory(format="glm4"), tokenizer, None, DAY)
    with pytest.raises(ValueError, match="one at a time"):
        turns.elements(Conversation((asked, called)), True, alone=False)


KEYS = {"stage": "sft", "output_dir": "runs/x", "template": "vicuna", "cutoff_len": 96}


def prepared(bench: Bench, rows: list[dict[str, Any]], **keys: Any) -> dict[str, Any]:
    """Return the preview of a file whose dataset has these rows."""
    recipe = load_recipe(KEYS | {"model_name_or_path": str(bench.model()), "dataset": str(bench.file(rows))} | keys)
    assert isinstance(recipe.data, DatasetConfig)
    return recipe.data.preview(recipe, 2)


def test_a_long_prompt_leaves_room_for_the_answer_in_every_stage(bench: Bench) -> None:
    asked = "hello " * 100
    row = {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": "yes"}]}
    pair = {"prompt": asked, "chosen": "yes", "rejected": "no"}
    for stage, rows in (("sft", [row]), ("dpo", [pair]), ("rm", [pair]), ("kto", [row | {"label": True}])):
        shown = prepared(bench, rows, stage=stage)
        learnt = [run["text"] for example in shown["examples"] for run in example["runs"] if run["trained"]]
        assert learnt[0].removesuffix("<|im_end|>") in ("yes", "no"), stage
        assert shown["report"]["truncated"] and shown["examples"][0]["tokens"] <= 2 * 96
        assert shown["report"]["template"] == "LLaMA-Factory's vicuna"


def test_the_day_that_tools_are_offered_with_makes_other_tokens(bench: Bench) -> None:
    tool = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    options: dict[str, Any] = {"cutoff_len": 2000, "tool_format": "llama3"}
    shown = [
        prepared(bench, [{"messages": said, "tools": [tool]}], **options, date=day)["examples"][0]["runs"][0]
        for day in ("2025-01-01", "2025-02-02", "2025-01-01")
    ]
    assert "01 Jan 2025" in shown[0]["text"] and "02 Feb 2025" in shown[1]["text"] and shown[0] == shown[2]


def test_turns_of_a_template_that_reasons_are_one_sample(bench: Bench) -> None:
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    shown = prepared(bench, [{"messages": said * 2}], template="qwen3", cutoff_len=500)
    assert shown["report"]["examples"] == 1 and not shown["report"]["notes"]
    learnt = [run["text"] for run in shown["examples"][0]["runs"] if run["trained"]]
    assert learnt == ["<think>\n\n</think>\n\nb<|im_end|>\n"] * 2
    for value in (False, None):
        unlearnt = prepared(bench, [{"messages": said * 2}], template="qwen3", cutoff_len=500, enable_thinking=value)
        assert [run["text"] for run in unlearnt["examples"][0]["runs"] if run["trained"]] == ["b<|im_end|>\n"] * 2


CALL = {"name": "weather", "arguments": {"city": "Rome"}}
THOUGHT = "<think>\nhm\n</think>\n\n"


@pytest.mark.parametrize("written", ["{}", "<tool_call>\n{}\n</tool_call>"])
def test_thoughts_before_a_call_are_learnt(bench: Bench, written: str) -> None:
    """They stand in the same text as the call, as LLaMA-Factory has them."""
    turns = [("human", "a"), ("function_call", THOUGHT + written.format(json.dumps(CALL))), ("observation", "sun")]
    rows = [{"conversations": [{"from": who, "value": text} for who, text in [*turns, ("gpt", "b")]]}]
    shown = prepared(bench, rows, template="qwen3", cutoff_len=500)
    learnt = [run["text"] for run in shown["examples"][0]["runs"] if run["trained"]]
    called = f"<tool_call>\n{json.dumps(CALL)}\n</tool_call><|im_end|>\n"
    assert learnt == [THOUGHT + called, "<think>\n\n</think>\n\nb<|im_end|>\n"]
    without = prepared(bench, rows, template="qwen3", cutoff_len=500, enable_thinking=False)
    assert [run["text"] for run in without["examples"][0]["runs"] if run["trained"]] == [called, "b<|im_end|>\n"]


def test_thoughts_before_a_call_are_read_as_every_template_marks_them() -> None:
    for words in {tuple(format_named(name).thought_words) for name in known()}:
        thought = f"{words[0]}like [1] or {{x}}{words[1]}"
        row = {
            "conversations": [
                {"from": "human", "value": "a"},
                {"from": "function_call", "value": thought + json.dumps(CALL)},
            ]
        }
        message = ShareGPT().build().convert(row).messages[1]
        assert message["content"] == thought and message["tool_calls"][0]["function"] == CALL, words


def test_calls_as_openai_writes_them_are_calls_and_what_is_not_written_is_counted(bench: Bench) -> None:
    """Their arguments are JSON text; text beside a call and thoughts in a key of their own are not read there."""
    call = {"id": "1", "type": "function", "function": CALL | {"arguments": json.dumps(CALL["arguments"])}}
    said = {"role": "assistant", "content": "Let me see.", "reasoning_content": "hm", "tool_calls": [call]}
    result = {"role": "tool", "content": "sun", "tool_call_id": "1"}
    messages = [{"role": "user", "content": "a", "name": "Ann"}, said, result, {"role": "assistant", "content": "b"}]
    shown = prepared(bench, [{"messages": messages}], template="qwen", cutoff_len=500)
    learnt = [run["text"] for run in shown["examples"][0]["runs"] if run["trained"]]
    assert learnt == [f"<tool_call>\n{json.dumps(CALL)}\n</tool_call><|im_end|>\n", "b<|im_end|>\n"]
    left_out = shown["report"]["sources"][0]["left_out_by_template"]
    assert left_out == dict.fromkeys(("text of an answer", "thoughts of an answer", "`name` of a message (user)"), 1)


def test_gyms_own_recipe_keeps_the_models_own_template(bench: Bench) -> None:
    rows = [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}]
    own = load_recipe({"model": str(bench.model()), "data": str(bench.file(rows)), "algorithm": "sft"})
    assert isinstance(own.data, DatasetConfig)
    shown = own.data.preview(own, 1)
    assert shown["report"]["template"] == "the model's own"
    assert [run["text"] for run in shown["examples"][0]["runs"] if run["trained"]] == ["b<|im_end|>"]
    theirs = prepared(bench, rows, template=None)
    assert theirs["report"]["template"] == "LLaMA-Factory's reading of the template of the model"
    assert [run["text"] for run in theirs["examples"][0]["runs"] if run["trained"]] == ["b<|im_end|>\n"]


def test_a_model_keeps_a_template_of_its_own_that_writes_the_same_turns(tmp_path: Path, bench: Bench) -> None:
    """It knows of tools and thoughts as well."""
    model, asked = bench.model(), [{"role": "user", "content": "a"}]

    def kept(name: str) -> str | None:
        return DatasetConfig(sources=[File(path="x")], template=LlamaFactory(format=name)).chat_template(model)

    (model / "chat_template.jinja").write_text(Qwen3().build())
    assert kept("qwen3") is None
    text = kept("deepseekr1")
    shown = Tokenizer(model, text).render
    thought = "<think>\n\n</think>\n\n"
    assert shown(asked, True, values={"enable_thinking": False}) == shown(asked, True) + thought
    (model / "chat_template.jinja").write_text("{{ raise_exception('no') }}")
    assert "<|im_start|>" in str(kept("qwen3"))


def test_a_template_that_is_not_there_names_the_nearest(bench: Bench) -> None:
    with pytest.raises(RecipeError, match="did you mean `vicuna`"):
        prepared(bench, [], template="vicunna")


def test_what_follows_an_answer_is_what_every_template_writes_there(tokenizer: Tokenizer) -> None:
    """Reinforcement learning goes on with an environment's message behind an answer that was sampled."""
    asked, answered, told = (
        {"role": role, "content": content}
        for role, content in (("user", "one two"), ("assistant", "five six"), ("user", "three four"))
    )
    ended = 0
    for name in known():
        made = Tokenizer(tokenizer.path, LlamaFactory(format=name).build())
        end = made.turn_ends[0] if made.turn_ends else None
        shown = NextTurn(made).tokens([told], made.eos_id or 0 if end is None else end)
        whole = made.chat([asked, answered, told], generation_prompt=True)[0].tolist()
        before, behind = whole[: -len(shown)], whole[-len(shown) :]
        assert behind == shown, name
        if end is not None:
            assert before.pop() == end, name
            ended += 1
        assert made.decode(before).endswith("five six"), name
    assert ended > 90
