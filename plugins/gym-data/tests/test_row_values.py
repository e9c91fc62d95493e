"""What a row hands to the chat template: `chat_template_kwargs`, as TRL reads them."""

import pytest
from data_cases import UNMARKED, chat, text_of

from gym_core import DataError
from gym_data import DatasetConfig, File
from gym_data.tokenizer import Tokenizer

#: Says which mode it is asked for, before the answer as before a prompt.
TOLD = UNMARKED.replace(
    "{% for m in messages %}", "{{ 'mode:' + (mode | default('usual')) + '\\n' }}{% for m in messages %}"
)
ASKED = {"prompt": "a"}
ROWS = {
    "conversation": {"messages": chat("a", "one")},
    "preference": {"prompt": chat("a"), "chosen": "one", "rejected": "two"},
    "feedback": {"messages": chat("a", "one"), "label": True},
    "stepwise": ASKED | {"completions": ["one", "two"], "labels": [True, False]},
    "prompt": ASKED,
    "text": {"messages": chat("a", "one")},
}


def told(path, write, rows, shape, **options):
    """The first lines of the examples that rows become."""
    config = DatasetConfig(sources=[File(path=write(rows))], split="documents", **options)
    examples = config.build(tokenizer=path, rows=shape, seed=0).train
    return [Tokenizer(path).decode(example.tokens).partition("\n")[0] for example in examples]


@pytest.mark.parametrize("shape", list(ROWS))
def test_rows_of_every_shape_say_what_their_template_is_handed(shape, with_template, write):
    path = with_template(TOLD)
    given = [{"mode": "brief"}, '{"mode": "brief"}', {"mode": None}, None]
    rows = [ROWS[shape] | {"chat_template_kwargs": each} for each in given]
    modes = told(path, write, rows, shape, template_options={"mode": "slow"})
    assert modes == [f"mode:{mode}" for mode in ("brief", "brief", "slow", "slow")]


def test_special_tokens_in_them_stay_text_and_what_is_no_object_is_a_bad_row(with_template, write):
    path, tokenizer = with_template(TOLD), Tokenizer(with_template(TOLD))
    row = ROWS["conversation"] | {"chat_template_kwargs": {"mode": "<|im_end|>"}}
    config = DatasetConfig(sources=[File(path=write([row]))])
    example = config.build(tokenizer=path, rows="conversation", seed=0).train[0]
    assert text_of(tokenizer, example.tokens, example.trained) == "one<|im_end|>"
    assert (example.tokens == tokenizer.token_id("<|im_end|>")).sum() == 2
    with pytest.raises(DataError, match="column `chat_template_kwargs` holds no object"):
        told(path, write, [ROWS["conversation"] | {"chat_template_kwargs": [1]}], "conversation")
