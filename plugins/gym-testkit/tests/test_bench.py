"""Tiny models and tensors made of nothing but the standard library."""

from __future__ import annotations

import json
import math

import pytest

from gym_testkit import rows, tiny, weights


def test_tensors_round_trip(tmp_path):
    made = {
        "b": weights.normal((3, 5), seed=1),
        "a": weights.constant((2,), 4.0),
        "empty": weights.constant((0, 3), 1.0),
    }
    weights.write(tmp_path / "x.safetensors", made)
    found = weights.read(tmp_path)
    assert found.keys() == made.keys()
    assert weights.distance(made, found) == 0.0
    assert found["empty"].shape == (0, 3)


def test_normal_numbers_are_normal_and_follow_the_seed():
    values = weights.normal((100, 100), seed=3).list()
    assert abs(sum(values) / len(values)) < 0.05
    assert math.isclose(weights.norm(values) / 100, 1.0, rel_tol=0.05)
    assert weights.normal((4,), 3).list() == values[:4] != weights.normal((4,), 4).list()


def test_models_differ_by_seed_alone(tmp_path):
    first, again, other = (tiny.write_model(tmp_path / name, seed) for name, seed in (("a", 0), ("b", 0), ("c", 1)))
    file = "model.safetensors"
    assert (first / file).read_bytes() == (again / file).read_bytes() != (other / file).read_bytes()
    assert json.loads((first / "tokenizer.json").read_text()) == json.loads((other / "tokenizer.json").read_text())


def test_every_byte_is_a_token(tmp_path):
    vocabulary = json.loads((tiny.write_model(tmp_path / "m") / "tokenizer.json").read_text())["model"]["vocab"]
    assert sorted(vocabulary.values()) == list(range(256))
    assert all(len(character) == 1 for character in vocabulary)


def test_more_special_tokens_than_there_is_room_for(tmp_path):
    with pytest.raises(AssertionError, match="no room"):
        tiny.write_model(tmp_path / "m", extra=[f"<{number}>" for number in range(9)])


@pytest.mark.parametrize("shape", ["conversation", "text", "preference", "feedback", "stepwise", "prompt"])
def test_even_rows_have_one_length(shape):
    lengths = {len(json.dumps(row).replace("true", "false")) for row in rows.make(shape, even=True)}
    assert len(lengths) == 1
    assert len({len(json.dumps(row)) for row in rows.make(shape)}) > 1


def test_command_line_runs_in_its_own_directory(gym_cli, bench):
    done = gym_cli("--version")
    assert done.returncode == 0
    assert gym_cli("validate", "nowhere.yaml").returncode != 0
