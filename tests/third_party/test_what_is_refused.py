"""What components of strangers must not do is refused by name: where, which key, why, and what to do."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, PretrainedConfig

from gym_core import Artifact, Callback, Exporter, GymError, Quantizer, Strategy, execute, load_recipe
from gym_core.hooks import manager_for
from gym_data.kinds import Data
from gym_optim.kinds import Optimizer, Scheduler
from gym_rewards import Reward
from gym_rl import RolloutEngineConfig
from gym_sft import SFT
from gym_testkit.bench import Bench
from gym_torch.contribution import Contribution
from gym_torch.kinds import Adapter, LoadTimeQuantizer
from gym_torch.loop.prepared_data import CheckedExamples
from gym_torch.metrics import OF_THE_LOOP, Mean
from gym_torch.model.adapted import Full
from gym_torch.model.loading import LoadedModel, check_loaded
from gym_torch.objective import Objective
from gym_torch.observer import Observer, Observers
from gym_torch.quantization.loading import codec_of
from gym_torch.quantization.weight_codec import WeightCodec
from gym_torch.source import Dataset

STEPS = {"max_steps": 1, "batch_size": 4, "save_every": 1}
MINE = __name__


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


def carried_out(bench, recipe, **components):
    """Carry out a recipe with components of a stranger in their places; return the lines of its log."""
    loaded = load_recipe(recipe | {"output": str(bench.path("run"))})
    return bench.finished(execute(replace(loaded, **components))).metrics


def refused(bench, key, why, **components):
    """Have a run refused: at a key, in a problem of at most four lines that says what to do."""
    with pytest.raises(GymError, match=why) as caught:
        carried_out(bench, bench.recipe("sft", **STEPS), **components)
    (problem,) = caught.value.problems
    assert problem.key == key and problem.fix and str(problem).count("\n") < 4
    assert MINE in str(problem) or key == "distributed"
    return problem


class Plain(Optimizer):
    """Says what docs/kinds.md asks for."""

    def build(self, parameters, learning_rate):
        return torch.optim.SGD([weight for group in parameters for _, weight in group["params"]], lr=learning_rate)

    def elementwise(self):
        return True

    def keeps_gradients(self):
        return True

    def updates_in_backward(self):
        return False


class Forgets(Plain):
    """Leaves parameters out."""

    def build(self, parameters, learning_rate):
        return torch.optim.SGD([weight for _, weight in parameters[0]["params"]], lr=learning_rate)


class Adds(Plain):
    """Has a parameter of its own."""

    def build(self, parameters, learning_rate):
        built = super().build(parameters, learning_rate)
        built.add_param_group({"params": [torch.nn.Parameter(torch.zeros(2))]})
        return built


class AveragesNothing(Plain):
    """Says that it averages, and has no average to use."""

    def averages(self):
        return True


class Vague(Plain):
    """Does not know."""

    def updates_in_backward(self):
        return None


class Hoards(Plain):
    """Keeps what no checkpoint can hold."""

    def build(self, parameters, learning_rate):
        built = super().build(parameters, learning_rate)
        built.param_groups[0]["seen"] = {1, 2}
        return built


@pytest.mark.parametrize(
    ("optimizer", "why"),
    [
        (Forgets, r"Forgets\.build returned leaves \d+ of \d+ parameters out, such as \w"),
        (Adds, r"Adds\.build returned has 1 parameters that it was not given"),
        (Vague, r"Vague\.updates_in_backward returned None, which is no bool"),
        (Hoards, r"Hoards keeps a set as `group 0//seen`"),
    ],
)
def test_an_optimizer(bench, optimizer, why):
    refused(bench, "optimizer", why, optimizer=optimizer())


def test_an_optimizer_that_averages_and_inherits_the_weights_to_use(bench):
    problem = refused(bench, "optimizer", "does not declare `evaluation_weights`", optimizer=AveragesNothing())
    assert "write `def evaluation_weights(self, optimizer)" in problem.fix


class Overwriting(Objective):
    """Logs under a name that is taken."""

    def loss(self, policy, batch):
        total = -policy(batch).sum()
        return total, {self.config.logged: Mean(total)}


class Overwrites(SFT):
    """Its objective logs what it is told to."""

    objective: ClassVar[str] = f"{MINE}:Overwriting"
    logged: str = "loss"
    """Name of a metric."""


class Talkative(Dataset):
    """Steps with metrics and a state of their own."""

    def steps(self, start, rank=0, world=1):
        return (replace(step, metrics=self.said) for step in super().steps(start, rank, world))

    def state_dict(self):
        return super().state_dict() | self.state


def talking(parts):
    """Return steps that say what the options say."""
    source = Talkative(parts.data.train, parts.train, parts.data.fingerprint, parts.layout)
    source.said, source.state = parts.config.said, {"when": {1}} if parts.config.keeps_a_set else {}
    return Contribution(parts.objective, source)


class Talks(Overwrites):
    """Its source says what it is told to."""

    contribution: ClassVar[str] = f"{MINE}:talking"
    logged: str = "own"
    said: dict[str, float] = {}
    """Metrics of each step."""
    keeps_a_set: bool = False
    """Whether its source has a state that no checkpoint can hold."""


def test_a_metric_that_would_overwrite_what_the_loop_writes(bench):
    refused(bench, "algorithm", r"Overwriting\.loss has the metric `loss`", algorithm=Overwrites())


def test_every_name_in_the_log_is_taken(bench):
    """None that the loop writes is left out: what a plain run logs, no metric may be called."""
    line = carried_out(bench, bench.recipe("sft", **STEPS))[0]
    assert line.keys() <= OF_THE_LOOP and {"loss", "num_tokens", "learning_rate"} <= line.keys()


@pytest.mark.parametrize("name", ["loss", "own"])
def test_metrics_of_a_source_that_would_overwrite_others(bench, name):
    problem = refused(bench, "algorithm", f"has the metric `{name}`", algorithm=Talks(said={name: 0.0}))
    assert "Talkative.steps" in problem.why


class Remembers(Observer):
    """Keeps a state, and changes the records that it is shown."""

    def __init__(self, state):
        self.state = state

    def logged(self, progress, record):
        record["loss"] = "overwritten"

    def state_dict(self):
        return self.state


class Watching(Callback):
    """Observes."""

    def build(self, run):
        return Remembers({})


@pytest.mark.parametrize("state", [{"names": {"a", "b"}}, {"deep": [{"at": np.float32(1)}]}, {3: "three"}])
def test_the_state_of_an_observer_that_is_no_plain_data(state):
    assert Observers([Remembers({"fine": [1, (2.5, None)]})]).state_dict()
    with pytest.raises(GymError, match="which no checkpoint can hold") as caught:
        Observers([Remembers(state)]).state_dict()
    assert (
        f"{MINE}.Remembers.state_dict returned a" in str(caught.value) and caught.value.problems[0].key == "callbacks"
    )


def test_the_state_of_a_source_that_is_no_plain_data(bench):
    problem = refused(bench, "algorithm", "which no checkpoint can hold", algorithm=Talks(keeps_a_set=True))
    assert "Talkative.state_dict returned a set at `when`" in problem.why


def test_what_an_observer_does_to_its_record_reaches_no_other(bench):
    class Reads(Observer):
        def logged(self, progress, record):
            seen.append(record["loss"])

    class Reading(Watching):
        def build(self, run):
            return Reads()

    seen = []
    carried_out(bench, bench.recipe("sft", **STEPS), callbacks=(Watching(), Reading()))
    assert seen and all(isinstance(loss, float) for loss in seen)


class Samples(list):
    """Samples with the lengths that the engine plans by."""

    @property
    def lengths(self):
        return np.array([len(each.tokens) for each in self])


ODD = {
    "large": np.array([3, 4, 10**6, 5, 6, 7], dtype=np.int32),
    "negative": np.array([3, 4, -7, 5, 6, 7], dtype=np.int32),
    "shares": np.linspace(0, 1, 6),
    "short": np.arange(3, 7),
    "a list": list(range(3, 9)),
}


class Odd(Data):
    """Samples of which one is odd."""

    how: str = "large"
    """In which way."""

    def build(self, **_):
        sizes = range(4)
        made = [SimpleNamespace(id=f"row {n}", tokens=np.arange(3, 9), trained=np.ones(6, dtype=bool)) for n in sizes]
        made[2].tokens = ODD[self.how]
        return SimpleNamespace(train=Samples(made), validation=None, fingerprint="odd", report={})


def test_a_token_that_the_model_does_not_have(bench):
    refused(bench, "data", "row 2 has the token 1000000, and the model has embeddings for 0 to", data=Odd())


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("negative", "row 2 has the token -7"),
        ("shares", "row 2 has tokens of float64"),
        ("short", r"row 2 has tokens of int64 \[4\], trained of bool \[6\]"),
        ("a list", r"row 2 has tokens of a list, trained of bool \[6\]"),
    ],
)
def test_a_sample_that_is_none(how, why):
    samples = CheckedExamples(Odd(how=how).build().train, 300, f"{MINE}.Odd")
    assert len(samples) == 4 and samples[1].id == "row 1"
    with pytest.raises(GymError, match=why) as caught:
        samples[2]
    assert caught.value.problems[0].where == f"{MINE}.Odd"


class One:
    """One sample, with the lengths that are said of it."""

    def __init__(self, lengths=None, trained=None):
        self.lengths = np.array([6]) if lengths is None else lengths
        self.trained = np.ones(6, dtype=bool) if trained is None else trained

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return SimpleNamespace(id="row 0", tokens=np.arange(3, 9), trained=self.trained)


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (One(lengths=[6]), "the `lengths` of 1 samples are a list"),
        (One(lengths=np.array([6, 6])), r"the `lengths` of 1 samples are int64 \[2\]"),
        (One(lengths=np.array([5])), "row 0 has 6 tokens, and `lengths` says 5"),
        (One(trained=np.full(6, 0.5)), r"row 0 has tokens of int64 \[6\], trained of float64 \[6\]"),
    ],
)
def test_samples_that_are_not_what_they_say(one, why):
    with pytest.raises(GymError, match=why) as caught:
        CheckedExamples(one, 300, f"{MINE}.One")[0]
    assert caught.value.problems[0].where == f"{MINE}.One"


class Partly(Data):
    """Data of which a part is missing."""

    without: str = "train"
    """Which."""

    def build(self, **_):
        made = {"train": One(), "validation": None, "fingerprint": "one", "report": {}}
        return SimpleNamespace(**made | {self.without: None})


@pytest.mark.parametrize("without", ["train", "fingerprint", "report"])
def test_data_of_which_a_part_is_missing(bench, without):
    refused(bench, "data", f"`{without}` of .*Partly returned a NoneType", data=Partly(without=without))


class Reports(Data):
    """Samples with a report that no file can hold."""

    def build(self, **_):
        return SimpleNamespace(train=One(), validation=None, fingerprint="one", report={"rows": {"seen": {1, 2}}})


def test_data_with_a_report_that_is_no_json(bench):
    refused(bench, "data", r"`report` of .*Reports returned a set at `rows\.seen`, which no run\.json", data=Reports())


class Whole(Full):
    """Returns what it is told to, instead of what an adapter returns."""

    wrong = ""

    def state(self):
        return {} if self.wrong == "state" else super().state()

    def save(self, *where, **how):
        made = super().save(*where, **how)
        return None if self.wrong == "save" else made

    def penalty(self):
        return {"penalty": "much", "wide": torch.zeros(2)}.get(self.wrong, 0.0)


class Wrong(Adapter):
    """Trains all weights, and returns something else in one place."""

    at: str = "state"
    """Where."""

    def build(self, model, seed):
        built = Whole(self, model, seed)
        built.wrong = self.at
        return built


@pytest.mark.parametrize(
    ("at", "why"),
    [
        ("state", r"Whole\.state returned {}"),
        ("save", r"Whole\.save returned a NoneType, which is no Artifact"),
        ("penalty", r"Whole\.penalty returned a str, which is no float"),
        ("wide", r"Whole\.penalty returned a tensor \[2\], which is no scalar"),
    ],
)
def test_an_adapter(bench, at, why):
    refused(bench, "adapter", why, adapter=Wrong(at=at))


class Little(LoadTimeQuantizer):
    """Returns what it is told to, instead of what a codec returns."""

    wrong: str = "encode"
    """Where."""

    def build(self):
        return LittleCodec(self)


class LittleCodec(WeightCodec):
    def __init__(self, config):
        self.wrong = config.wrong

    def encode(self, weight):
        return {"nothing": {}, "none": None, "text": {"codes": "all"}}.get(self.wrong, {"codes": weight})

    def decode(self, stored, shape):
        found = stored["codes"]
        return {"turned": found.T, "whole": found.int(), "undecoded": None}.get(self.wrong, found)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("nothing", r"LittleCodec\.encode returned {} for a matrix \[32, 64\]"),
        ("none", r"LittleCodec\.encode returned None"),
        ("text", r"LittleCodec\.encode returned {'codes': 'all'}"),
        ("turned", r"LittleCodec\.decode returned torch.float32 \[64, 32\] for a matrix \[32, 64\]"),
        ("whole", r"LittleCodec\.decode returned torch.int32 \[32, 64\]"),
        ("undecoded", r"LittleCodec\.decode returned a NoneType"),
    ],
)
def test_a_codec_is_tried_before_the_model_is_loaded(wrong, why):
    with pytest.raises(GymError, match=why) as caught:
        codec_of(Little(wrong=wrong), PretrainedConfig())
    (problem,) = caught.value.problems
    assert problem.key == "model.quantization" and problem.fix and MINE in problem.why
    assert codec_of(Little(wrong="nowhere"), PretrainedConfig())


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"path": "tiny"}, "as `path` of its LoadedModel, returned a str, which is no Path"),
        ({"precision": "fp64"}, "returned a LoadedModel with the precision 'fp64'"),
        ({"model": None}, "as `model` of its LoadedModel, returned a NoneType"),
    ],
)
def test_a_loaded_model_that_is_not_what_it_says(said, why):
    right = {
        "model": GPT2LMHeadModel(GPT2Config(vocab_size=8, n_positions=8, n_embd=4, n_layer=1, n_head=1)),
        "path": Path(),
        "name": "own",
        "precision": "bf16",
    }
    assert check_loaded(LoadedModel(**right), Plain(), "model")
    with pytest.raises(GymError, match=why) as caught:
        check_loaded(LoadedModel(**right | said), Plain(), "model")
    (problem,) = caught.value.problems
    assert problem.key == "model" and problem.fix and MINE in problem.why
    assert "precision" not in said or "fp32 or bf16" in problem.fix


class Wild(Scheduler):
    """Shapes the learning rate into what is none."""

    factor: str = "-1"
    """What it returns; no option is a number that is not finite."""

    def build(self, total, warmup):
        return lambda step: float(self.factor)


@pytest.mark.parametrize("factor", ["-1.0", "nan", "inf"])
def test_a_factor_that_is_no_share_of_the_learning_rate(bench, factor):
    refused(bench, "scheduler", f"Wild returned {factor} after 0 of", scheduler=Wild(factor=factor))


class Alone(Strategy):
    """Builds nothing."""

    def build(self, output):
        return None


def test_a_strategy_that_builds_no_ranks(bench):
    refused(bench, "distributed", r"Alone\(\) built no Ranks", distributed=Alone())


class Writes(Exporter):
    """Returns what it is told to."""

    path: object = None
    """What that is."""

    def build(self):
        return SimpleNamespace(export=lambda artifact, into: self.path)


@pytest.mark.parametrize(
    ("path", "why"),
    [
        (None, "export: Writes.* returned None"),
        ("model.bin", "export: Writes.* returned 'model.bin'"),
        (Path("nowhere/model.bin"), r"export: Writes.* returned PosixPath\('nowhere/model.bin'\)"),
    ],
)
def test_an_exporter_that_returns_no_path(path, why):
    hook, artifact = manager_for([]).hook, Artifact(Path())
    with pytest.raises(GymError, match=why) as caught:
        hook.export(run=None, artifact=artifact, exporter=Writes(path=path), into=Path("into"))
    assert caught.value.problems[0].key == "export"
    there = Path(__file__)
    assert hook.export(run=None, artifact=artifact, exporter=Writes(path=there), into=Path("into")) == there


class Shrinks(Quantizer):
    """Returns nothing."""

    def build(self):
        return SimpleNamespace(quantize=lambda run, artifact, into: None)


def test_a_quantizer_that_returns_no_artifact():
    run = SimpleNamespace(recipe=SimpleNamespace(quantization=Shrinks()))
    with pytest.raises(GymError, match=r"Shrinks\(\) returned None") as caught:
        manager_for([]).hook.quantize(run=run, artifact=Artifact(Path()), into=Path("into"))
    assert caught.value.problems[0].key == "quantization" and caught.value.problems[0].fix


class Silent(Reward):
    """Has nothing to say."""

    def build(self):
        return lambda inputs: [None] * len(inputs)


class Nobody(RolloutEngineConfig):
    """Builds what answers nothing."""

    def build(self, **_):
        return nullcontext()


def asked(bench, **options):
    """Return a recipe that learns from rewards, and its algorithm with these options."""
    recipe = bench.recipe(
        {"name": "rloo", "rewards": ["length"], "group_size": 4, "max_new_tokens": 4}, "prompt", **STEPS
    )
    return recipe, load_recipe(recipe).algorithm.model_copy(update=options)


def test_a_rollout_engine_that_builds_none(bench):
    recipe, algorithm = asked(bench, rollouts=Nobody())
    with pytest.raises(GymError, match=r"Nobody\.build returned a nullcontext, which is no RolloutEngine") as caught:
        carried_out(bench, recipe, algorithm=algorithm)
    assert caught.value.problems[0].key == "algorithm.rollouts"


def test_a_reward_that_lacks_something_is_refused_before_the_model_is_loaded(bench, monkeypatch, capsys):
    monkeypatch.delenv("ACME_TOKEN", raising=False)
    http = {"name": "http", "url": "http://127.0.0.1:9/score", "token": "ACME_TOKEN"}
    with pytest.raises(GymError, match="the environment variable ACME_TOKEN is not set"):
        carried_out(bench, bench.recipe({"name": "rloo", "rewards": [http], "group_size": 4}, "prompt", **STEPS))
    assert not capsys.readouterr().err, "the model was loaded first"


def test_what_no_reward_judges_has_no_reward(bench, capsys):
    recipe, algorithm = asked(bench, rewards=[Silent()])
    lines = carried_out(bench, recipe, algorithm=algorithm)
    assert lines and not any("reward" in line or "rewards/silent/mean" in line for line in lines)
    assert "reward `silent` says nothing of any of 4 completions" in "".join(capsys.readouterr())
