"""What a run leaves: metrics, plots, LLaMA-Factory's files, a card, and a model that plain transformers loads."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import pyarrow.json
import pytest
from gym_torch_bench import Memory, Prepared, Sample, Samples, make_run, samples, train
from matplotlib.image import imread
from transformers import AutoModelForCausalLM, AutoTokenizer

from gym_core import Artifact, GymError
from gym_data.location import called
from gym_torch.checkpoints.tokenizer_files import copy_tokenizer
from gym_torch.loop.callbacks.json_lines_base import read_lines
from gym_torch.loop.callbacks.loss_plot import draw, smooth
from gym_torch.loop.callbacks.metrics_jsonl import Metrics
from gym_torch.loop.callbacks.progress_bar import ProgressBar
from gym_torch.observer import Progress


@pytest.fixture(scope="module")
def finished(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Artifact]:
    output = tmp_path_factory.mktemp("files") / "run"
    settings = {"plot": True, "log_every": 2, "eval_every": 5, "save_every": 5}
    return output, train(make_run(model_path, output, Memory(held_out=4), **settings))


def test_metrics(finished: tuple[Path, Artifact]) -> None:
    lines = read_lines(finished[0] / "metrics.jsonl")
    assert [(line["step"], "eval_loss" in line) for line in lines] == [
        (2, False), (4, False), (5, False), (5, True), (6, False), (8, False), (10, False), (10, True)
    ]  # fmt: skip
    assert {"step", "epoch", "loss", "grad_norm", "learning_rate", "num_tokens", "tokens_per_second"} <= lines[0].keys()


def test_plots(finished: tuple[Path, Artifact]) -> None:
    for name in ("loss.png", "training_loss.png"):
        assert (finished[0] / name).read_bytes().startswith(b"\x89PNG")


def test_files_of_llama_factory(finished: tuple[Path, Artifact]) -> None:
    lines = read_lines(finished[0] / "trainer_log.jsonl")
    assert {
        "current_steps",
        "total_steps",
        "loss",
        "lr",
        "epoch",
        "percentage",
        "elapsed_time",
        "remaining_time",
    } <= lines[0].keys()
    assert lines[-1]["percentage"] == 100.0
    results = {
        name: json.loads((finished[0] / f"{name}_results.json").read_text()) for name in ("all", "train", "eval")
    }
    assert results["all"] == results["train"] | results["eval"]
    assert {"train_loss", "train_runtime", "train_samples_per_second", "eval_loss", "epoch"} <= results["all"].keys()


def test_run_record(finished: tuple[Path, Artifact]) -> None:
    record = json.loads((finished[0] / "run.json").read_text())
    assert record["training"]["steps"] == 10
    assert record["training"]["loss"] < record["training"]["first_loss"]
    assert record["data"]["fingerprint"] == "memory-0"


def test_card(finished: tuple[Path, Artifact]) -> None:
    text = (finished[0] / "README.md").read_text()
    assert text.startswith("---\nlibrary_name: transformers\n")
    assert "Not evaluated" in text and "\nA model made by Gym." in text
    assert (finished[1].path / "README.md").read_text() == text


@pytest.mark.parametrize(
    ("base", "name"),
    [
        ("runs/first/model", "first"),
        ("runs/first/export/safetensors", "first"),
        ("models/mine", "mine"),
        ("a/hub-id", "hub-id"),
    ],
)
def test_a_card_calls_what_a_run_made_by_the_name_of_the_run(tmp_path: Path, monkeypatch, base: str, name: str) -> None:
    """Its folder is called `model` for all of them."""
    monkeypatch.chdir(tmp_path)
    for folder in ("runs/first/model", "runs/first/export/safetensors", "models/mine"):
        Path(folder).mkdir(parents=True)
    Path("runs/first/run.json").write_text("{}")
    assert called(base) == name and called(str(tmp_path / base)) == name


def test_the_model_loads_in_plain_transformers(finished: tuple[Path, Artifact]) -> None:
    path = finished[1].path
    AutoModelForCausalLM.from_pretrained(path)
    assert AutoTokenizer.from_pretrained(path).chat_template
    assert not any(file.suffix in (".bin", ".pt", ".pth", ".pkl") for file in finished[0].rglob("*"))


def test_a_tokenizer_that_is_gone_is_told(tmp_path: Path) -> None:
    """As when somebody clears the cache that holds a tokenizer with more tokens: a result without one would be of no use."""
    with pytest.raises(GymError, match="the tokenizer is gone"):
        copy_tokenizer(tmp_path / "gone", tmp_path)


def test_a_line_cut_short_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text('{"a": 1}\n{"a": 2}\n{"a":')
    assert read_lines(tmp_path / "lines") == [{"a": 1}, {"a": 2}]
    assert read_lines(tmp_path / "none") == []


def test_smoothing_starts_at_the_first_value() -> None:
    assert smooth([3.0, 3.0, 3.0]) == pytest.approx([3.0, 3.0, 3.0])


def test_a_short_run_is_smoothed_less_than_a_long_one() -> None:
    """Else its line ends far from where it ended: at 0.31, where a loss fell to 0.14 in four points."""
    assert smooth([0.75, 0.28, 0.17, 0.14])[-1] == pytest.approx(0.14, abs=0.03)
    noise = [2.0, 0.0] * 500
    assert smooth(noise)[-1] == pytest.approx(1.0, abs=0.1)


def test_evaluations_do_not_keep_the_loss_off_the_screen(capsys: pytest.CaptureFixture[str]) -> None:
    """Where there is no terminal a line comes now and then, and evaluations may come more often."""
    bar = ProgressBar()
    bar.started(Progress(total=9))
    bar.evaluated(Progress(total=9, step=1), {"eval_loss": 2.5})
    bar.logged(Progress(total=9, step=2), {"loss": 1.5, "tokens_per_second": 10.0})
    bar.logged(Progress(total=9, step=3), {"loss": 1.25, "tokens_per_second": 10.0})
    bar.evaluated(Progress(total=9, step=4), {"eval_loss": 0.5})
    told = capsys.readouterr().err.splitlines()
    assert [line.partition("  ETA")[0] for line in told] == [
        "step 1/9  eval_loss 2.5000",
        "step 2/9  loss 1.5000, 10 tokens/s",
        "step 4/9  eval_loss 0.5000",
    ]


def test_a_measure_that_is_no_number_is_null_to_every_reader(tmp_path: Path) -> None:
    """Strict readers refuse a bare NaN, readers with types a text among numbers. The curve goes on behind the gap."""
    log = Metrics(tmp_path / "metrics.jsonl")
    for step, loss in enumerate((2.0, math.nan, math.inf, 1.0), start=1):
        log.append({"step": step, "loss": loss, "parts": [{"share": -loss}]})
    text = (tmp_path / "metrics.jsonl").read_text()
    lines = [json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()]
    assert [line["loss"] for line in lines] == [2.0, None, None, 1.0] and lines[1]["parts"] == [{"share": None}]
    typed = pyarrow.json.read_json(tmp_path / "metrics.jsonl")
    assert typed["loss"].type == "double" and typed["loss"].null_count == 2
    assert read_lines(tmp_path / "metrics.jsonl") == lines
    measured = [line for line in lines if line["step"] in (1, 4)]
    for name, records in (("gap", lines), ("whole", measured)):
        draw(records, tmp_path / name)
    assert (tmp_path / "gap").read_bytes() == (tmp_path / "whole").read_bytes()


def test_a_run_without_a_log_line_can_be_drawn(tmp_path: Path) -> None:
    draw([], tmp_path / "empty.png")
    assert (tmp_path / "empty.png").exists()


class SlowSamples(Samples):
    """Takes its time for each sample, as rollouts do."""

    def __getitem__(self, index: int) -> Sample:
        time.sleep(0.2)
        return super().__getitem__(index)


class Slow(Memory):
    """Counting sequences that are made as they are asked for."""

    def build(self, **context: Any) -> Prepared:
        return Prepared(SlowSamples(samples(4).samples), None)


def test_the_time_of_a_step_begins_where_its_samples_are_asked_for(model_path: Path, tmp_path: Path) -> None:
    train(make_run(model_path, tmp_path, Slow(), max_steps=2, batch_size=2))
    record = json.loads((tmp_path / "run.json").read_text())["training"]
    assert record["seconds"] >= 0.8
    assert sum(line["tokens_per_second"] for line in read_lines(tmp_path / "metrics.jsonl")) <= record["tokens"] / 0.4


def test_a_single_step_can_be_seen_in_the_plot(tmp_path: Path) -> None:
    """A line through one point is no line: the axes were empty."""
    draw([{"step": 5, "loss": 1.0}], tmp_path / "one.png")
    picture = imread(tmp_path / "one.png")[80:400, 100:650, :3]  # within the axes, off the legend
    assert (abs(picture[..., 2] - picture[..., 0]) > 0.1).any()
