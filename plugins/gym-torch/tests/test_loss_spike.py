"""A step whose loss or gradient is a spike is left out, or ends the run; what a run ended of is told sample by sample."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from gym_torch_bench import Counting, Crash, Event, NextToken, make_run, metrics, same, samples, state, train, weights
from gym_torch_two import in_two

from gym_core import GymError, RecipeError
from gym_core.ranks import Ranks
from gym_core.train import LossSpike
from gym_optim.config import AdamW
from gym_torch import DDP, FSDP
from gym_torch.loop.loss_spikes import LossSpikes
from gym_torch.source import Dataset

BAD = 5  #: the step that holds the odd sample
SETTINGS: dict[str, Any] = {"save_every": 2, "log_every": 1, "max_steps": 8, "keep_last": 9, "learning_rate": 1e-4}
SPIKES = {"window": 4, "threshold": 8.0}


class Odd(NextToken):
    """Multiplies the loss of the sample that starts with one token."""

    token, factor = -1, 1.0

    def loss(self, policy: Any, batch: Any) -> Any:
        total, sums = super().loss(policy, batch)
        odd = bool((batch.tokens[:, 0] == self.token).any())
        return total * (self.factor if odd else 1.0), sums


class Loud(Odd):
    factor = 50.0


class Lost(Odd):
    factor = float("nan")


class Spiking(Counting):
    """With a spike."""

    objective: ClassVar[str] = f"{__name__}:Loud"


class Failing(Counting):
    """With a loss that is no number."""

    objective: ClassVar[str] = f"{__name__}:Lost"


@pytest.fixture(autouse=True)
def culprit(model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make one sample odd that comes first at step `BAD`; return its name."""
    name, token = odd(model_path, tmp_path / "unused")
    monkeypatch.setattr(Odd, "token", token)
    return name


def odd(model: Path, unused: Path, size: int = 4) -> tuple[str, int]:
    run = make_run(model, unused, **SETTINGS, batch_size=size)
    taken = [
        [example.id for batch in step.batches for example in batch]
        for step in Dataset(samples(24), run.recipe.train).steps(0)
    ]
    first = next(name for name in taken[BAD - 1] if all(name not in step for step in taken[: BAD - 1]))
    return first, int(samples(24)[int(first.split()[1])].tokens[0])


def with_spikes(**options: Any) -> dict[str, Any]:
    return SETTINGS | {"loss_spike": LossSpike(**SPIKES | options)}


def test_the_limit_is_that_of_the_paper() -> None:
    """Mean and deviation over the last steps that were taken, in float64."""
    draw = np.random.default_rng(0)
    values = draw.lognormal(0, 0.3, size=(60, 2))
    values[30], values[31, 0], values[32, 1] = (9, 1), np.nan, 40
    spikes, taken = LossSpikes(LossSpike(window=10, threshold=3)), list[Any]()
    for loss, norm in values:
        last = np.array(taken[-10:], dtype=np.float64)
        limits = last.mean(0) + 3 * last.std(0, ddof=1) if len(last) >= 5 else np.full(2, np.inf)
        found = spikes.judged(float(loss), float(norm))
        assert (found is not None) == (
            not (np.isfinite([loss, norm]).all() and (np.array([loss, norm]) <= limits).all())
        )
        if found is None:
            spikes.passed(float(loss), float(norm))
            taken.append((loss, norm))
        else:
            assert np.allclose([found.loss_limit, found.grad_norm_limit], limits, rtol=1e-12)
            assert spikes.skipped()
        spikes.load_state_dict(json.loads(json.dumps(spikes.state_dict())))
    assert 50 < len(taken) < 60


@pytest.mark.parametrize("value", [0.0, 0.1, 2.7, 1e4])
def test_rounding_is_no_spike(value: float) -> None:
    """Of values without a deviation, such as the loss 0 of policies that are what they were, the last digits mean nothing."""
    spikes = LossSpikes(LossSpike(window=50, threshold=3))
    for _ in range(50):
        spikes.passed(value, 0.1)
    assert spikes.judged(value + 4e-7 * max(1, value), 0.1000001) is None
    assert spikes.judged(value * 1.1 + 0.1, 0.1) and spikes.judged(value, 0.2)


@pytest.mark.parametrize("algorithm", [Spiking(), Failing()], ids=["spike", "nan"])
def test_a_spike_updates_nothing_as_if_its_step_had_been_left_out(
    model_path: Path, tmp_path: Path, culprit: str, algorithm: Any
) -> None:
    train(make_run(model_path, tmp_path / "found", algorithm=algorithm, **with_spikes()))
    train(make_run(model_path, tmp_path / "named", algorithm=algorithm, **SETTINGS, skip_steps=(BAD,)))
    assert same(weights(tmp_path / "found"), weights(tmp_path / "named"))
    assert same(state(tmp_path / "found", 8)[0], state(tmp_path / "named", 8)[0])
    found, named = metrics(tmp_path / "found"), metrics(tmp_path / "named")
    line = found[BAD - 1]
    assert culprit in line["skipped"]
    assert (
        line["skipped_loss"] is None
        if isinstance(algorithm, Failing)
        else line["skipped_loss"] > line["skipped_loss_limit"]
    )
    assert [{k: v for k, v in line.items() if not k.startswith("skipped_")} for line in found] == named
    assert json.loads((tmp_path / "found/run.json").read_text())["training"]["skipped"] == [BAD]


@pytest.mark.parametrize("crash", [4, 5, 7])
def test_a_crash_beside_a_spike_changes_nothing(model_path: Path, tmp_path: Path, crash: int) -> None:
    settings: dict[str, Any] = {"algorithm": Spiking(), **with_spikes()}
    train(make_run(model_path, tmp_path / "whole", **settings))
    with pytest.raises(Crash):
        train(make_run(model_path, tmp_path / "cut", sections={"callbacks": (Event(step=crash),)}, **settings))
    train(make_run(model_path, tmp_path / "cut", **settings))
    assert same(weights(tmp_path / "cut"), weights(tmp_path / "whole"))
    assert metrics(tmp_path / "cut") == metrics(tmp_path / "whole")
    assert json.loads((tmp_path / "cut/run.json").read_text())["training"]["skipped"] == [BAD]


def test_a_spike_that_is_to_stop_the_run_is_told_sample_by_sample(
    model_path: Path, tmp_path: Path, culprit: str
) -> None:
    output, settings = tmp_path / "run", {"algorithm": Spiking(), **with_spikes(action="stop")}
    with pytest.raises(GymError, match=rf"a spike: loss .* the largest loss first: {culprit}, row") as caught:
        train(make_run(model_path, output, **settings))
    assert len(str(caught.value).splitlines()) <= 4
    report = json.loads((output / "divergence.json").read_text())
    assert report["step"] == BAD and report["spike"]["loss"] > report["spike"]["loss_limit"]
    first, second = report["samples"][:2]
    assert first["sample"] == culprit and first["loss"] > 10 * second["loss"] and first["finite"]
    assert len(report["samples"]) == 4 and report["weights"]["not_finite"] == 0
    text = (output / "divergence.txt").read_text()
    assert f"step {BAD}: a spike" in text and culprit in text and "What to try:" in text
    assert f"`train.skip_steps=[{BAD}]`" in text
    train(make_run(model_path, output, **settings, skip_steps=(BAD,)))  # what it advises
    assert json.loads((output / "run.json").read_text())["training"]["skipped"] == [BAD]


def test_a_run_that_ends_of_nan_says_which_samples_do_it(model_path: Path, tmp_path: Path, culprit: str) -> None:
    """Without the option too; and what each of the others does by itself."""
    output = tmp_path / "run"
    with pytest.raises(GymError, match=f"is not finite; samples: {culprit}"):
        train(make_run(model_path, output, algorithm=Failing(), **SETTINGS))
    report = json.loads((output / "divergence.json").read_text())
    told = {each["sample"]: each for each in report["samples"]}
    assert [name for name, each in told.items() if not each["finite"]] == [culprit]
    assert told[culprit]["loss"] is None and report["samples"][0]["sample"] == culprit
    assert all(0 < each["loss"] < 20 and each["grad_norm"] > 0 for name, each in told.items() if name != culprit)
    assert all(each["text"] for each in report["samples"])
    assert report["parameters_not_finite"] and len(report["weights"]["parameters"]) == 10
    assert f"look at these rows, mend them or take them out of the data: {culprit}" in report["try"]


def test_a_new_run_takes_away_what_one_before_it_said(model_path: Path, tmp_path: Path) -> None:
    (tmp_path / "divergence.json").write_text("{}")
    train(make_run(model_path, tmp_path, **SETTINGS | {"max_steps": 1}))
    assert not (tmp_path / "divergence.json").exists()


def test_ruined_weights_are_told_too(model_path: Path, tmp_path: Path) -> None:
    settings = SETTINGS | {"save_every": 1, "learning_rate": 1e38, "warmup": 0.0, "loss_spike": LossSpike()}
    with pytest.raises(GymError, match="since the update with samples: row"):
        train(make_run(model_path, tmp_path / "run", **settings))
    report = json.loads((tmp_path / "run/divergence.json").read_text())
    assert report["step"] == 1 and report["weights"]["not_finite"] > 0
    assert len(report["samples"]) == 4 and "ruined" in report["try"][0]


def test_many_spikes_in_a_row_end_the_run(model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Lost, "loss", lambda self, policy, batch: (NextToken.loss(self, policy, batch)[0] * float("inf"), {})
    )
    with pytest.raises(GymError, match="is not finite") as caught:
        train(make_run(model_path, tmp_path / "run", algorithm=Failing(), **with_spikes(patience=2)))
    assert caught.value.problems[0].where == "step 3"
    report = json.loads((tmp_path / "run/divergence.json").read_text())
    assert report["spike"]["row"] == 3 and "every sample does it" in report["try"][0]
    assert [line["step"] for line in metrics(tmp_path / "run")] == [1, 2]


def shared(ranks: Ranks, rank: int, model: Path, root: Path, distributed: Any) -> None:
    """Be one of two processes, of which one has the odd sample."""
    Odd.token = odd(model, root / f"unused-{rank}")[1]
    settings = with_spikes() | {"batch_size": 2, "accumulate": 2}
    run = make_run(model, root / str(rank), algorithm=Spiking(), sections={"distributed": distributed}, **settings)
    run.ranks = ranks
    train(run)


@pytest.mark.parametrize("distributed", [DDP(), FSDP()], ids=["ddp", "fsdp"])
def test_two_processes_agree_on_what_is_a_spike(
    model_path: Path, tmp_path: Path, distributed: Any, culprit: str
) -> None:
    in_two(tmp_path, shared, model_path, tmp_path, distributed)
    train(make_run(model_path, tmp_path / "one", algorithm=Spiking(), **with_spikes()))
    one, two = metrics(tmp_path / "one"), metrics(tmp_path / "0")
    assert [line.get("skipped") for line in one] != [None] * 8
    assert [sorted(line.get("skipped", ())) for line in two] == [sorted(line.get("skipped", ())) for line in one]
    assert [line["loss"] for line in two if "loss" in line] == pytest.approx(
        [line["loss"] for line in one if "loss" in line]
    )


def test_an_update_that_happens_in_backward_cannot_be_left_out(model_path: Path, tmp_path: Path) -> None:
    sections = {"optimizer": AdamW(in_backward=True)}
    with pytest.raises(RecipeError, match="leave out an update by its gradient"):
        train(make_run(model_path, tmp_path / "run", sections=sections, max_grad_norm=0.0, **with_spikes()))
