"""Named templates: what they show, what they train, and on which tokenizers they are refused."""

from datetime import date

import pytest
from data_cases import chat

from gym_core import DataError, PluginError
from gym_core.discovery import entries
from gym_core.loading import load_component
from gym_data import DatasetConfig, File, Template
from gym_data.chat.loss_masks import unmark
from gym_data.chat.render import ChatTemplate
from gym_data.prepare import open_tokenizer
from gym_data.templates import ChatML, JinjaFile, Llama3, Qwen3

NAMES = sorted(
    entry.name
    for entry in entries("templates")
    if entry.dist == "gym-data" and issubclass(load_component("templates", entry.name)[1], JinjaFile)
)
VALUES = {"bos_token": "<s>", "eos_token": "</s>"}
CLOSING = {
    "chatml": "<|im_end|>",
    "qwen": "<|im_end|>",
    "qwen3": "<|im_end|>",
    "qwen3_nothink": "<|im_end|>",
    "llama3": "<|eot_id|>",
    "gemma": "<end_of_turn>",
}
WITH_TOOLS = {"qwen", "qwen3", "qwen3_nothink", "llama3"}


def render(name, messages, tools=None, prompt=False):
    template = ChatTemplate(load_component("templates", name)[1]().build())
    return template, unmark(template.render(messages, tools, prompt, VALUES))


@pytest.mark.parametrize("name", NAMES)
def test_each_template_shows_all_and_trains_the_answers(name):
    messages = chat("first", "one", "second", "two", system="Be kind.")
    template, whole = render(name, messages)
    for message in messages:
        assert message["content"] in whole.text
    end = CLOSING.get(name, "</s>")
    if template.marks_generation:
        assert [whole.text[a:b].strip() for a, b in whole.spans] == [f"one{end}", f"two{end}"]
    # An answer continues its prompt: what is generated at inference is what was learnt.
    prompt, answered = render(name, messages[:-1], prompt=True)[1].text, whole.text
    assert answered.startswith(prompt)
    assert answered[len(prompt) :].strip().removeprefix("<think>\n\n</think>\n\n") == f"two{end}"


@pytest.mark.parametrize("name", NAMES)
def test_tools_are_shown_or_refused(name):
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    messages = [
        chat("1+1?")[0],
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "it-is-2"},
        chat("", "Two.")[1],
    ]
    tools = [{"type": "function", "function": {"name": "add", "description": "adds"}}]
    if name in WITH_TOOLS:
        text = render(name, messages, tools)[1].text
        assert "adds" in text and '"a": 1' in text and "it-is-2" in text
    elif name != "chatml":
        with pytest.raises(ValueError, match="has no tools"):
            render(name, messages, tools)


def test_qwen3_drops_the_reasoning_of_earlier_turns():
    messages = chat("a", "<think>\nhm\n</think>\n\none", "b", "<think>\nso\n</think>\n\ntwo")
    text = render("qwen3", messages)[1].text
    assert "hm" not in text and "<think>\nso\n</think>\n\ntwo" in text


def test_qwen3_nothink_adds_nothing_to_plain_turns():
    messages = chat("first", "one", system="Be kind.")
    assert render("qwen3_nothink", messages)[1] == render("chatml", messages)[1]
    assert render("qwen3_nothink", messages[1:])[1] == render("chatml", messages[1:])[1]


def config(template):
    return DatasetConfig(sources=[File(path="x")], template=template)


def test_a_template_is_refused_where_its_tokens_are_missing(model):
    assert open_tokenizer(config(ChatML()), model, date.today()).templates["default"].startswith("{%")
    assert open_tokenizer(config(Qwen3()), model, date.today())
    with pytest.raises(DataError, match=r"template `llama3` of gym-data .* needs <\|begin_of_text\|>") as caught:
        open_tokenizer(config(Llama3()), model, date.today())
    assert str(caught.value).count("\n") == 2


class Forgetful(Template):
    """Returns no text."""

    def build(self) -> None:
        return None


def test_a_template_without_a_text_is_named_and_not_replaced_by_the_model_s_own(model):
    with pytest.raises(PluginError, match="returned a NoneType where its kind promises a text") as caught:
        open_tokenizer(config(Forgetful()), model, date.today())
    assert "Forgetful" in caught.value.problems[0].fix
