"""What quantizers see of rows, of whatever shape."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from gym_core.cli import run as gym
from gym_core.errors import OK
from gym_data.examples import Branched, Example, Pair
from gym_torch.batch import unbranched

ROWS = {
    "text": [{"text": " ".join(f"word {number} of {row}" for number in range(60))} for row in range(90)],
    "preference": [{"prompt": f"{row} + 2?", "chosen": f"{row} " * 9, "rejected": "no"} for row in range(60)],
    "prompt": [{"prompt": f"what is {row} and two, in words? " * 2} for row in range(60)],
}


@pytest.mark.parametrize("shape", ROWS)
def test_what_no_run_made_is_calibrated_on_rows_of_any_shape(shape: str, tmp_path: Path) -> None:
    """And a family is named as it is everywhere."""
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS[shape]))
    words = ["quantize", "tiny", "--with", "gptq", f"data={file}", "--into", str(tmp_path / "made")]
    assert gym([*words, "calibration_samples=16", "holdout_samples=1"]) == OK
    told = json.loads((tmp_path / "made/quantization.json").read_text())
    assert told["samples"]["calibration_tokens"] > 192 and told["samples"]["holdout_tokens"] > 9


def test_all_of_a_text_is_calibrated_on(tmp_path: Path) -> None:
    """Its blocks are longer than samples: each gives several."""
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS["text"]))
    words = ["quantize", "tiny", "--with", "gptq", f"data={{sources: [{file}], cutoff: 512}}", "calibration_length=128"]
    assert gym([*words, "holdout_samples=1", "--into", str(tmp_path / "made")]) == OK
    told = json.loads((tmp_path / "made/quantization.json").read_text())["samples"]
    assert (told["calibration_samples"], told["calibration_tokens"]) == (128, 128 * 128)


def example(cls: type, length: int, **more: object) -> Example:
    tokens = np.arange(length, dtype=np.int32)
    return cls("row", tokens, tokens > 2, **more)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("sample", "seen"),
    [
        (example(Example, 5), [0, 1, 2, 3, 4]),
        (example(Pair, 7, shared=3, chosen=2), [0, 1, 2, 3, 4]),
        (example(Pair, 7, shared=0, chosen=4), [0, 1, 2, 3]),
        (example(Branched, 7, segments=[(2, None), (2, 0), (1, 1), (2, 0)]), [0, 1, 2, 3, 4]),
    ],
)
def test_no_sequence_goes_on_with_another(sample: Example, seen: list[int]) -> None:
    """The rejected side of a pair does not stand behind the one that was chosen: no model is asked for that."""
    found = unbranched(sample)
    assert found.tokens.tolist() == seen and found.trained.tolist() == [token > 2 for token in seen]
