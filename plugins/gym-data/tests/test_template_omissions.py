"""Whatever a message says is in the text that is learnt, or is counted, or the row is refused: with every template there is."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from data_cases import MARKED, UNMARKED, chat

from gym_core.discovery import entries
from gym_core.loading import load_component
from gym_data.chat.chat_rendering import ChatRenderer, ChatTemplateSpec, RenderRequest
from gym_data.chat.template_omissions import ANSWER, CALLS, RESULT, THOUGHTS
from gym_data.templates import JinjaFile

VALUES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
OURS = {
    entry.name: config().build()
    for entry in entries("templates")
    if entry.dist == "gym-data" and issubclass(config := load_component("templates", entry.name)[1], JinjaFile)
}
#: Templates of published models, which TRL brings along.
TRL = find_spec("trl")
PUBLISHED = sorted((Path(TRL.origin).parent / "chat_templates").glob("*.jinja")) if TRL and TRL.origin else []
TEMPLATES = {**OURS, **{f"trl-{path.stem}": path.read_text() for path in PUBLISHED}}


def user(text):
    return {"role": "user", "content": text}


def said(text, **more):
    return {"role": "assistant", "content": text, **more}


def call(arguments):
    return {
        "tool_calls": [{"id": "abcdefghi", "type": "function", "function": {"name": "fname", "arguments": arguments}}]
    }


TOOLS = [
    {
        "type": "function",
        "function": {"name": "fname", "description": "d", "parameters": {"type": "object", "properties": {}}},
    }
]
RESULTS = {"role": "tool", "name": "fname", "content": "resultword", "tool_call_id": "abcdefghi"}
CALLED = ("fname", "argkey", "argword")
#: Messages, tools, and each word that an answer or a tool says, by what is to be counted where it does not appear.
CASES = {
    "plain": ([user("a"), said("oneword"), user("b"), said("twoword")], (), {"oneword": ANSWER, "twoword": ANSWER}),
    **{
        key: ([user("a"), said("oneword", **{key: "thoughtword"})], (), {"oneword": ANSWER, "thoughtword": THOUGHTS})
        for key in ("reasoning_content", "thinking", "reasoning")
    },
    "thoughts in the text": (
        [
            *(user("a"), said("<think>\nfirstthought\n</think>\n\noneword")),
            *(user("b"), said("<think>\nlastthought\n</think>\n\ntwoword")),
        ],
        (),
        {"firstthought": THOUGHTS, "lastthought": THOUGHTS, "oneword": ANSWER, "twoword": ANSWER},
    ),
    **{
        f"a call with {what} and {'text' if text else 'none'}": (
            [user("a"), said(text, **call(arguments)), RESULTS, said("twoword")],
            TOOLS,
            {"resultword": RESULT, "twoword": ANSWER, text or "twoword": ANSWER, **dict.fromkeys(CALLED, CALLS)},
        )
        for what, arguments in (("an object", {"argkey": "argword"}), ("JSON text", json.dumps({"argkey": "argword"})))
        for text in ("", "oneword")
    },
    "other keys": (
        [user("a") | {"name": "nameword"}, said("oneword", refusal="refusalword")],
        (),
        {"oneword": ANSWER, "nameword": "`name` of a message (user)", "refusalword": "`refusal` of a message (assistant)"},
    ),
}  # fmt: skip


def chats(template, **more):
    return ChatRenderer(
        ChatTemplateSpec(
            {"default": template}, VALUES, **{"special": [], "further": [], "stops": [], "every_special": []} | more
        )
    )


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_word_is_learnt_or_counted_or_refused(name):
    ours = chats(TEMPLATES[name])
    for case, (messages, tools, words) in CASES.items():
        wanted = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
        try:
            found = ours.learnable(RenderRequest(messages, tools, wanted))
        except ValueError:
            continue
        learnt = "\0".join(each.text[start:end] for each in found.sequences for start, end in each.spans)
        context = "\0".join(each.text for each in found.sequences)
        missing = {
            label
            for word, label in words.items()
            if word not in (learnt if label in (ANSWER, THOUGHTS, CALLS) or "assistant" in label else context)
        }
        assert missing == set(found.lost), (name, case)


def test_published_templates_show_calls_however_their_arguments_are_written():
    """Each of these takes arguments in one way alone, or calls without text alone."""
    for name in (
        "trl-qwen2_5",
        "trl-deepseekv3",
        "trl-glm4moe",
        "trl-deepseek_r1_distill",
        "trl-gptoss",
        "qwen",
        "llama3",
    ):
        if name not in TEMPLATES:
            pytest.skip("trl is not installed")
        for arguments in ({"argkey": "argword"}, json.dumps({"argkey": "argword"})):
            found = chats(TEMPLATES[name]).learnable(
                RenderRequest(
                    [user("a"), said("", **call(arguments))],
                    TOOLS if "deepseek" not in name and "glm" not in name else (),
                    [1],
                )
            )
            learnt = "".join(each.text[a:b] for each in found.sequences for a, b in each.spans)
            assert "fname" in learnt and "argword" in learnt and CALLS not in found.lost, name
            assert '\\"argkey' not in learnt and "'argkey'" not in learnt, name


def test_arguments_stay_as_they_were_where_the_template_takes_them_so():
    text = '{"argkey":   "argword"}'
    template = TEMPLATES["qwen3"].replace("call.function.arguments | tojson", "call.function.arguments")
    for shown, given in ((text, text), ('{"argkey": "argword"}', {"argkey": "argword"})):
        assert (
            shown
            in chats(template).learnable(RenderRequest([user("a"), said("", **call(given))], (), [1])).sequences[0].text
        )


HANDING_OVER = (
    "{% for m in messages %}{{ '<|' + m.role + '|>\\n' + m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\\n{% endif %}"
).replace("\\n{% endif", "{{ '\\n' }}{% endif")


def test_an_answer_that_nothing_ends_learns_whose_turn_is_next_where_the_model_stops_there():
    tokens = ["<|user|>", "<|assistant|>", "<|observation|>"]
    known = {"special": tokens, "every_special": tokens}
    messages = chat("a", "one", "b", "two")

    def learnt(stops):
        found = chats(HANDING_OVER, stops=stops, **known).learnable(RenderRequest(messages, (), [1, 3])).sequences
        return ["|".join(each.text[start:end] for start, end in each.spans) for each in found]

    assert learnt([]) == ["one|two"]
    assert learnt(["<|user|>"]) == ["one<|user|>|two<|user|>"]
    assert learnt(["<|endoftext|>"]) == ["one|two"]


@pytest.mark.parametrize(
    ("stops", "sequences"), [([], 2), (["<|endoftext|>"], 2), (["<|im_end|>", "<|endoftext|>"], 1)]
)
def test_what_ends_a_text_is_not_learnt_behind_a_stop(stops, sequences):
    """As in Phi-3, which writes it behind the last turn alone: a conversation is one sequence all the same."""
    tokens = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
    ending = UNMARKED + "{% if not add_generation_prompt %}<|endoftext|>{% endif %}"
    phi = chats(ending, special=tokens, every_special=tokens, stops=stops)
    found = phi.learnable(RenderRequest(chat("a", "one", "b", "two"), (), [1, 3])).sequences
    assert len(found) == sequences
    spans = [each.text[start:end] for each in found for start, end in each.spans]
    behind = "" if sequences == 1 else "\n<|endoftext|>"
    assert spans == [f"{word}<|im_end|>{behind}" for word in ("one", "two")]


@pytest.mark.skipif("trl-glm4moe" not in TEMPLATES, reason="trl is not installed")
def test_glm_ends_answers_and_calls_with_whose_turn_is_next():
    tokens = ["<|user|>", "<|assistant|>", "<|observation|>", "<|endoftext|>", "<|system|>"]
    glm = chats(TEMPLATES["trl-glm4moe"], special=tokens, every_special=tokens, stops=[tokens[0], tokens[2], tokens[3]])
    messages = [user("a"), said("", **call({"argkey": "argword"})), RESULTS, said("two")]
    (both,) = glm.learnable(RenderRequest(messages, (), [1, 3])).sequences
    assert [both.text[start:end].rpartition("<|")[2] for start, end in both.spans] == ["observation|>", "user|>"]
    (first,) = glm.learnable(RenderRequest(messages[:2], (), [1])).sequences
    assert first.text.endswith("<|observation|>") and first.spans[-1][1] == len(first.text)


@pytest.mark.parametrize("template", [MARKED, UNMARKED])
def test_an_answer_whose_whole_text_is_left_out_is_refused(template):
    with pytest.raises(ValueError, match=r"leaves out the text of message 2 .assistant"):
        chats(template.replace("m.content +", "(m.content if m.role == 'user' else '') +")).learnable(
            RenderRequest(chat("a", "b"), (), [1])
        )


@pytest.mark.parametrize("template", [MARKED, UNMARKED])
def test_an_answer_whose_calls_are_left_out_is_refused(template):
    """The tools stand in the prompt, so the name of the function is in the text: what is learnt would be to say nothing."""
    listing = "{% for t in tools or () %}{{ t.function.name }}{% endfor %}" + template
    messages = [user("a"), said("", **call({"argkey": "argword"})), RESULTS, said("two")]
    with pytest.raises(ValueError, match=r"leaves out the tool calls of message 2 .assistant"):
        chats(listing).learnable(RenderRequest(messages, TOOLS, [1, 3]))
    assert chats(listing).learnable(RenderRequest(messages, TOOLS, [3])).sequences


@pytest.mark.parametrize("template", [MARKED, UNMARKED])
def test_prompts_whose_system_message_is_left_out_are_refused(template):
    hiding = template.replace("for m in messages", "for m in messages if m.role != 'system'")
    with pytest.raises(ValueError, match=r"leaves out message 1 .system"):
        chats(hiding).learnable(RenderRequest(chat("a", system="Be kind."), (), prompt=True))
