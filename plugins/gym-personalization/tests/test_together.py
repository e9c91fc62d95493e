"""Users who train together get the adapters that each gets alone, whoever else is there and whenever they come and go."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from gym_personalization_bench import STEPS, Crowd, adapter_in
from torch import Tensor

from gym_core import GymError, RecipeError, load_recipe
from gym_personalization.base import AloneError
from gym_personalization.training_engine import Engine
from gym_personalization.user_scheduler import Waiting, train_all
from gym_personalization.variants import STATE
from gym_torch.kernels import linear_products, onednn_linear

CLOSE = 1e-5


def furthest(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@pytest.fixture(scope="module")
def engine(crowd: Crowd, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """Room for three users, and passes so small that a step takes several."""
    output = tmp_path_factory.mktemp("engine")
    return Engine(crowd.recipe(0, output), output, users=3, tokens=150)


def waiting(crowd: Crowd, root: Path, user: int, **train: Any) -> Waiting:
    return Waiting(str(user), root / str(user), lambda: crowd.recipe(user, root / str(user), **train))


def test_each_gets_the_adapter_it_gets_alone(engine: Engine, crowd: Crowd, tmp_path: Path) -> None:
    """Four users through room for three: SFT and DPO, other rows, rates, batches, accumulation, seeds and ends."""
    found = list(train_all(engine, [waiting(crowd, tmp_path, user) for user in range(4)]))
    assert sorted(each.name for each in found) == list("0123")
    assert all(each.error is None for each in found), [each.error for each in found]
    for user in range(4):
        together, alone = adapter_in(tmp_path / str(user)), crowd.alone(user)
        assert furthest(together, alone) < CLOSE, user
        assert max(float(held.abs().max()) for name, held in alone.items() if "lora_B" in name) > 100 * CLOSE


def test_the_base_computes_as_it_did_when_its_users_began(
    crowd: Crowd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which library multiplies is found by a trial: a later one may come out otherwise, and users who go on must not notice."""
    for size in ("ROWS", "NARROWEST"):
        monkeypatch.setattr(linear_products, size, 1)
    losses: list[float] = []
    calls: list[int] = []
    product = onednn_linear.few_rows
    monkeypatch.setattr(onednn_linear, "few_rows", lambda *given: calls.append(1) or product(*given))
    for chosen in ("onednn", ""):
        output = tmp_path / (chosen or "torch")
        output.mkdir()
        sizes = [f"linear of {one} to {other} float32" for one in range(8, 513, 8) for other in range(8, 513, 8)]
        (output / "personalization.json").write_text(json.dumps({"linear_products": dict.fromkeys(sizes, chosen)}))
        engine = Engine(crowd.recipe(0, output), output, users=1)
        (found,) = train_all(engine, [waiting(crowd, tmp_path, 0, max_steps=2)])
        assert found.error is None
        assert bool(calls) == bool(chosen)
        calls.clear()
        losses.append(json.loads((found.output / "run.json").read_text())["training"]["mean_loss"])
        found.output.rename(output / "0")
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_what_comes_out_is_what_a_run_leaves(engine: Engine, crowd: Crowd, tmp_path: Path) -> None:
    """The same files in `model`, an equal configuration of peft, and a record that others can open."""
    crowd.alone(1)
    (made,) = train_all(engine, [waiting(crowd, tmp_path, 1)])
    own, alone = made.output, crowd.root / "alone-1"
    names = sorted(path.name for path in (alone / "model").iterdir())
    assert sorted(path.name for path in (own / "model").iterdir()) == names
    for name in ("adapter_config.json", "tokenizer_config.json"):
        assert (own / "model" / name).read_text() == (alone / "model" / name).read_text()
    records = [json.loads((folder / "run.json").read_text()) for folder in (own, alone)]
    for record, folder in zip(records, (own, alone), strict=True):
        assert Path(record["artifact"].pop("path")) == folder / "model"
    assert records[0]["artifact"] == records[1]["artifact"]
    assert records[0]["training"]["mean_loss"] == pytest.approx(records[1]["training"]["mean_loss"], rel=1e-5)
    lines = [[json.loads(line) for line in (f / "metrics.jsonl").read_text().splitlines()] for f in (own, alone)]
    assert [line["loss"] for line in lines[0]] == pytest.approx([line["loss"] for line in lines[1]], rel=1e-4)


def test_coming_and_going_disturbs_nobody(engine: Engine, crowd: Crowd, tmp_path: Path) -> None:
    """One trains on while others come, rest on the disk in the middle, come back into another slot, and fail."""
    engine.join("0", crowd.recipe(0, tmp_path / "0"), tmp_path / "0")
    engine.join("1", crowd.recipe(1, tmp_path / "1"), tmp_path / "1")
    for _ in range(4):
        assert not engine.step()
    engine.leave("1")
    engine.join("3", crowd.recipe(3, tmp_path / "3"), tmp_path / "3")
    engine.join("poor", crowd.recipe(4, tmp_path / "4"), tmp_path / "4")
    with torch.no_grad():
        next(iter(engine.present["poor"].policy.pairs.values())).fill_(torch.nan)
    assert list(engine.step()) == ["poor"]
    assert "nan" not in str(engine.step())
    engine.join("1", crowd.recipe(1, tmp_path / "1"), tmp_path / "1")
    assert engine.present["1"].slot == 2
    for _ in range(STEPS + 4):
        assert not engine.step()
    for user in (0, 1, 3):
        engine.finish(str(user))
        assert furthest(adapter_in(tmp_path / str(user)), crowd.alone(user)) < CLOSE
        assert not (tmp_path / str(user) / STATE).exists()
    assert json.loads((tmp_path / "4" / "run.json").read_text())["status"] == "failed"


@pytest.mark.parametrize("seen", [["012", "123", "03"], ["012", "345", "016", "234", "56"]])
def test_whose_turn_is_over_makes_room_for_those_who_wait(
    engine: Engine, crowd: Crowd, tmp_path: Path, seen: list[str]
) -> None:
    """Through room for three, two steps each: as many leave as wait, who is new comes first, and each learns the same."""
    names = sorted(set("".join(seen)))
    users = [Waiting(name, tmp_path / name, partial(crowd.recipe, 0, tmp_path / name, max_steps=2)) for name in names]
    told: list[str] = []
    found = list(train_all(engine, users, turn=1, told=lambda engine: told.append("".join(sorted(engine.present)))))
    assert told == seen
    assert sorted((each.name, each.error) for each in found) == [(name, None) for name in names]
    assert not list(tmp_path.rglob(STATE))
    first, *others = (adapter_in(each.output) for each in found)
    assert max(furthest(first, other) for other in others) < CLOSE


def test_a_step_with_nothing_to_learn_from_goes_by(engine: Engine, crowd: Crowd, tmp_path: Path) -> None:
    """The schedule of such a user goes on, its weights stay, and the others take their step."""
    idle, other = (engine.join(name, crowd.recipe(int(name), tmp_path / name), tmp_path / name) for name in "01")
    with engine.hosting("01"):
        idle.steps = (replace(step, idle=True) for step in idle.steps)
        assert not engine.step()
        assert (idle.job.progress.step, idle.job.progress.idle) == (1, 1)
        assert (other.job.progress.step, other.job.progress.idle) == (1, 0)
        assert all(not held.any() for name, held in idle.adapter.state().items() if "lora_B" in name)


def test_a_state_on_the_disk_is_exact(engine: Engine, crowd: Crowd, tmp_path: Path) -> None:
    """In turns of three steps, a user alone ends with the very bits of one who was never put down."""
    results = []
    for turn in (None, 3):
        root = tmp_path / str(turn)
        engine.join("0", crowd.recipe(0, root), root)
        while not engine.present["0"].job.progress.over:
            engine.step()
            if turn and engine.present["0"].job.progress.step % turn == 0:
                engine.leave("0")
                engine.join("0", crowd.recipe(0, root), root)
        engine.finish("0")
        results.append((adapter_in(root), (root / "metrics.jsonl").read_text().count("loss")))
    (one, lines), (other, lines_again) = results
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert lines == lines_again


def test_a_killed_process_is_followed_by_one_that_goes_on(engine: Engine, crowd: Crowd, tmp_path: Path) -> None:
    """What was not saved is computed again; who was finished is left alone."""
    several = [waiting(crowd, tmp_path, user, save_every=5) for user in (0, 1)]
    seen = 0

    def killed(engine: Engine) -> None:
        nonlocal seen
        seen += 1
        if seen == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(train_all(engine, several, told=killed))
    assert not engine.present, "who was in training has no room any more"
    assert all((each.output / STATE).is_file() for each in several)
    steps = []
    found = list(train_all(engine, several, told=lambda engine: steps.append(1)))
    assert [each.error for each in found] == [None, None] and len(steps) == STEPS + 1 - 5
    for user in (0, 1):
        assert furthest(adapter_in(tmp_path / str(user)), crowd.alone(user)) < CLOSE
    again = list(train_all(engine, several))
    assert all(each.repeated for each in again)


def test_a_user_whose_files_cannot_be_written_harms_no_other(engine: Engine, crowd: Crowd, tmp_path: Path) -> None:
    """A state that the disk does not take: the user is named, and the room is free again."""
    several = [waiting(crowd, tmp_path, user, save_every=4) for user in (0, 3)]

    def block(engine: Engine) -> None:
        (tmp_path / "0" / STATE).mkdir(exist_ok=True)
        (tmp_path / "0" / STATE / "in the way").touch()

    found = {each.name: each for each in train_all(engine, several, told=block)}
    assert found["0"].error is not None and "does not take the state" in str(found["0"].error)
    assert found["3"].error is None and furthest(adapter_in(tmp_path / "3"), crowd.alone(3)) < CLOSE
    assert not engine.present
    assert json.loads((tmp_path / "0" / "run.json").read_text())["status"] == "failed"


def test_whoever_asks_for_no_more_leaves_the_room(engine: Engine, crowd: Crowd, tmp_path: Path) -> None:
    made = train_all(engine, [waiting(crowd, tmp_path, user) for user in (0, 1)])
    next(made)
    made.close()
    assert not engine.present and engine.free == 3


def test_a_state_of_something_else_is_refused(engine: Engine, crowd: Crowd, tmp_path: Path) -> None:
    """A bit that fell over, another recipe: named, and the user is not let in."""
    engine.join("0", crowd.recipe(0, tmp_path), tmp_path)
    engine.step()
    engine.leave("0")
    with pytest.raises(GymError, match="the recipe is not what it was"):
        engine.join("0", crowd.recipe(0, tmp_path, learning_rate=0.5), tmp_path)
    for skipped, why in ((1, "step 1 is part of the checkpoint"), (99, "there is no step 99")):
        with pytest.raises(RecipeError, match=why):
            engine.join("0", crowd.recipe(0, tmp_path, skip_steps=[skipped]), tmp_path)
    path = tmp_path / STATE
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(GymError, match="the state is damaged"):
        engine.join("0", crowd.recipe(0, tmp_path), tmp_path)
    assert engine.free == 3


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"adapter": {"name": "lora", "dropout": 0.1}}, "more than a low-rank update"),
        ({"adapter": "dora"}, "more than a low-rank update"),
        ({"adapter": {"name": "lora", "rank": 5}}, "another rank"),
        ({"optimizer": "lomo"}, "works in the backward pass"),
        ({"train": {"precision": "bf16"}}, "for one user, and"),
        ({"algorithm": {"name": "dpo", "ref_model": "tiny"}}, "needs a second model"),
        ({"export": ["safetensors"]}, "exports are written by the run of one user"),
    ],
)
def test_what_users_cannot_share_is_refused(
    engine: Engine, crowd: Crowd, tmp_path: Path, change: dict[str, Any], why: str
) -> None:
    raw = crowd.recipe(2, tmp_path).canonical()
    for section, value in change.items():
        raw[section] = {**raw[section], **value} if section == "train" else value
    raw["train"]["max_grad_norm"] = 0.0
    with pytest.raises(RecipeError, match=why):
        engine.join("2", load_recipe(raw), tmp_path)
    assert engine.free == 3


def test_users_whose_embeddings_train_do_not_train_together(crowd: Crowd, tmp_path: Path) -> None:
    """They train one after another, as in runs of their own."""
    raw = crowd.recipe(0, tmp_path).canonical()
    raw["model"] = {**raw["model"], "resize_vocab": True}
    raw["data"] = {**raw["data"], "template": "chatml"}
    with pytest.raises(AloneError, match="more than a low-rank update"):
        Engine(load_recipe(raw), tmp_path, users=1)
