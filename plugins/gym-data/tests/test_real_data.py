"""LLaMA-Factory's own demo files load without a change."""

import pytest

from gym_core import DataError
from gym_data import DatasetConfig, Named
from gym_data.row_reader import Reader
from gym_data.rows import Conversation, Feedback, Preference, Text

ROWS = {
    "alpaca_en_demo": (999, Conversation),
    "identity": (91, Conversation),
    "glaive_toolcall_en_demo": (300, Conversation),
    "gsm8k_train": (7473, Conversation),
    "dpo_en_demo": (300, Preference),
    "kto_en_demo": (300, Feedback),
    "wiki_demo": (30, Text),
    "c4_demo": (300, Text),
    "tinyshakespeare": (32777, Text),
}


@pytest.mark.parametrize("name", ROWS)
def test_every_row_of_every_text_set_is_read(name, real_data):
    count, kind = ROWS[name]
    reader = Reader(DatasetConfig(sources=[Named(path=name)], dataset_dir=str(real_data)), kind.__name__.lower(), 0)
    assert sum(isinstance(record.row, kind) for record in reader.records()) == count
    assert not reader.tallies[0].bad


@pytest.mark.parametrize("name", ["alpaca_en_demo", "glaive_toolcall_en_demo", "dpo_en_demo", "kto_en_demo", "c4_demo"])
def test_the_columns_alone_tell_the_same(name, real_data):
    path = next(real_data.glob(f"{name}.json*"))
    kind = ROWS[name][1]
    config = DatasetConfig(sources=[Named(path=str(path))], max_samples=20)
    assert all(isinstance(record.row, kind) for record in Reader(config, kind.__name__.lower(), 0).records())


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("mllm_demo", "it has images, which `data: {media: vision}` reads"),
        ("mllm_video_demo", "it has videos, which `data: {media: vision}` reads"),
        ("mllm_audio_demo", "it has audios, which `data: {media: sound}` reads"),
    ],
)
def test_rows_with_media_are_refused_by_name(name, why, real_data):
    reader = Reader(DatasetConfig(sources=[Named(path=name)], dataset_dir=str(real_data)), "conversation", 0)
    with pytest.raises(DataError, match=f"row 1: {why}"):
        list(reader.records())


def test_identity_takes_its_variables_and_mixes(real_data, model):
    config = DatasetConfig(
        sources=[Named(path="identity"), Named(path="alpaca_en_demo")],
        dataset_dir=str(real_data),
        variables={"name": "Gym", "author": "us"},
        max_samples=20,
        mix="interleave_once",
        validation=0.25,
    )
    prepared = config.build(tokenizer=model, seed=3)
    assert (len(prepared.train), len(prepared.validation)) == (30, 10)
    assert {example.id.partition(":")[0] for example in prepared.train} == {"identity", "alpaca_en_demo"}
