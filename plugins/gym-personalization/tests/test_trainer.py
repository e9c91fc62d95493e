"""What `PersonalizedTrainer` and `gym personalize` promise: create, update and answer, and no user harms another."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from gym_personalization_bench import adapter_in, rows
from safetensors.torch import load_file, save_file

import gym
from gym.quantization import BitDeltaConfig
from gym_bitdelta.variants_commands import variants
from gym_core import BusyError, DataError, GymError, RecipeError, cache_dir, load_recipe
from gym_core.execution import execute
from gym_data.cache_eviction import described, kept
from gym_personalization.commands import personalize
from gym_personalization.trainer import PersonalizedTrainer
from gym_personalization.training_engine import Engine
from gym_personalization.variants import STATE, Variant, Variants

RECIPE: dict[str, Any] = {
    "adapter": {"name": "lora", "rank": 4},
    "train": {"max_steps": 6, "batch_size": 2, "learning_rate": 1e-2, "precision": "fp32", "save_every": 50},
}
QUICK = {"name": "bitdelta", "distill_steps": 0, "holdout_samples": 2, "calibration_samples": 2}


@pytest.fixture(scope="module")
def trainer(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> PersonalizedTrainer:
    output = tmp_path_factory.mktemp("variants")
    return PersonalizedTrainer(str(model_path), None, output=output, recipe=RECIPE, users_at_once=2)


def test_the_name_of_the_seeds() -> None:
    assert gym.personalization.PersonalizedTrainer is PersonalizedTrainer


def test_what_libraries_warn_of_at_import_is_kept_back_before_they_are_imported() -> None:
    script = (
        "import logging, sys, gym_personalization; "
        "assert logging.getLogger('torchao').filters; assert not {'transformers', 'torchao'} & sys.modules.keys()"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_users_whose_names_differ_in_case_have_folders_that_do_on_every_system(tmp_path: Path) -> None:
    """As on a file system where `Alice` and `alice` are one folder; the folder still says who it is of."""
    users = ["alice", "Alice", "ALICE", "aLice", "a" * 100, "A" * 100]
    variants = Variants(tmp_path)
    folders = [variants.folder(user) for user in users]
    assert len({folder.name.lower() for folder in folders}) == len(users)
    assert folders[0].name == "alice" and all(len(folder.name) <= 255 for folder in folders)
    for folder in folders:
        folder.mkdir(parents=True)
    assert sorted(variants.users()) == sorted(users)


def test_a_file_that_changed_under_its_name_is_no_variant_that_is_there(
    trainer: PersonalizedTrainer, tmp_path: Path
) -> None:
    """Neither one that is trained, nor one that is half-way; and the same rows under another name are the same rows."""
    file, renamed = tmp_path / "carol.jsonl", tmp_path / "new" / "carol.jsonl"
    renamed.parent.mkdir()
    lines = ["".join(json.dumps(row) + "\n" for row in rows(seed)) for seed in (1, 2)]
    file.write_text(lines[0])
    made = trainer.create_variants(tmp_path)["carol"]
    assert isinstance(made, Variant), made
    renamed.write_text(lines[0])
    file.write_text(lines[1])
    found = trainer.create_variants(tmp_path)["carol"]
    assert isinstance(found, BusyError) and "other rows" in str(found), found
    assert json.loads((made.output / "run.json").read_text())["status"] == "finished"
    file.write_text(lines[0])
    again = trainer.create_variants(tmp_path)["carol"]
    assert isinstance(again, Variant) and again.output == made.output

    waiting = tmp_path / "dave.jsonl"
    waiting.write_text(lines[0])

    def stop(engine: Engine) -> None:
        if engine.present["dave"].job.progress.step == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trainer.create_variants({"dave": waiting}, told=stop, save_every=1)
    assert (trainer.variants.folder("dave") / "1" / STATE).exists()
    waiting.write_text(lines[1])
    found = trainer.create_variants({"dave": waiting})["dave"]
    assert isinstance(found, BusyError) and "other rows" in str(found), found


def test_nobody_writes_down_other_rows_while_a_user_learns(model_path: Path, tmp_path: Path) -> None:
    """Who comes with other rows meanwhile is told to wait, and never given what was learnt from those before."""
    first, second = (PersonalizedTrainer(str(model_path), None, output=tmp_path, recipe=RECIPE) for _ in range(2))
    refused = []

    def meanwhile(engine: Engine) -> None:
        for use in (lambda: second.create_variant("ann", rows(2)), lambda: second.create_variants({"ann": rows(2)})):
            with pytest.raises(BusyError) as caught:
                use()
            refused.append(str(caught.value))

    made = first.create_variants({"ann": rows(1)}, told=meanwhile, max_steps=1)["ann"]
    assert isinstance(made, Variant) and len(refused) == 2, made
    with pytest.raises(BusyError, match="other rows"):
        second.create_variant("ann", rows(2), max_steps=1)
    kept = (tmp_path / "users/ann/data-1.jsonl").read_text()
    assert [json.loads(line) for line in kept.splitlines()] == rows(1)
    first.close()


def test_a_base_that_changed_under_its_users_is_no_base_of_theirs(model_path: Path, tmp_path: Path) -> None:
    base = copytree(model_path, tmp_path / "base")
    users = PersonalizedTrainer(str(base), None, output=tmp_path / "out", recipe=RECIPE)
    users.create_variant("ann", rows(1), max_steps=1)
    users.close()
    same, other = (copytree(base, tmp_path / name) for name in ("same", "other"))
    for each in (base, other):
        file = next(each.glob("*.safetensors"))
        save_file({name: weight + 1 for name, weight in load_file(file).items()}, file, {"format": "pt"})
    PersonalizedTrainer({"path": str(same)}, None, output=tmp_path / "out", recipe=RECIPE).close()
    with pytest.raises(RecipeError, match=r"the variants here belong to the base .*base, and not to .*other"):
        PersonalizedTrainer(str(other), None, output=tmp_path / "out", recipe=RECIPE)
    users = PersonalizedTrainer(str(base), QUICK, output=tmp_path / "out", recipe=RECIPE)
    for use in (
        lambda: users.serve_variant("ann", "1?"),
        lambda: users.update_variant("ann", rows(2)),
        lambda: users.variants.publish("ann", 1),
    ):
        with pytest.raises(GymError, match="belongs to another base"):
            use()
    users.close()


def test_a_tokenizer_that_is_the_same_is_on_the_disk_once(model_path: Path, tmp_path: Path) -> None:
    """Every run still has its files, with the bytes that they had."""
    users = PersonalizedTrainer(str(model_path), None, output=tmp_path, recipe=RECIPE | {"train": {"max_steps": 1}})
    first, second = (users.create_variant(user, rows(1)).trained.path for user in ("ann", "bob"))
    users.close()
    name = "tokenizer.json"
    assert (first / name).read_bytes() == (second / name).read_bytes() == (model_path / name).read_bytes()
    assert (first / name).stat().st_ino == (second / name).stat().st_ino
    assert (first / "adapter_config.json").stat().st_ino != (second / "adapter_config.json").stat().st_ino
    assert not (first / name).stat().st_mode & 0o222, "who writes into it is told that others have it too"


def test_create_serve_and_update(trainer: PersonalizedTrainer, model_path: Path) -> None:
    """A variant is a run of its own recipe; an update goes on from it as `adapter_name_or_path` does, and then answers."""
    made = trainer.create_variant("alice", rows(1), seed=3)
    assert made.version == 1 and made.bytes > 0 and made.trained.kind == "adapter"
    before = trainer.serve_variant("alice", "1?", max_new_tokens=8)
    assert isinstance(before, str)
    assert trainer.serve_variant("alice").generate("1?", max_new_tokens=8) == before
    assert trainer.create_variant("alice", rows(1), seed=3).output == made.output
    with pytest.raises(BusyError, match="other rows"):
        trainer.create_variant("alice", rows(2))

    again = trainer.update_variant("alice", rows(2), seed=3)
    assert again.version == 2 and adapter_in(made.output)
    assert trainer.variants.served("alice") == again
    alone = made.output.parent / "alone"
    going_on = {**RECIPE["adapter"], "adapter_name_or_path": str(made.trained.path)}
    data = {"sources": [str(made.output.parent / "data-2.jsonl")], "processes": 1}
    execute(
        load_recipe(
            {
                **RECIPE,
                "model": str(model_path),
                "data": data,
                "algorithm": "sft",
                "adapter": going_on,
                "output": str(alone),
            }
            | {"train": {**RECIPE["train"], "seed": 3, "plot": False}}
        )
    )
    expected, found = adapter_in(alone), adapter_in(again.output)
    assert all(torch.allclose(found[name], expected[name], rtol=0, atol=1e-5) for name in expected)


def test_a_compressed_variant_answers(model_path: Path, tmp_path: Path) -> None:
    """What a quantizer made of the adapter is what is served, with a prompt and without; an update goes on from the adapter.

    A process that ended while the quantizer was at work leaves a finished run without an artifact: it is compressed next time.
    """
    config = BitDeltaConfig(bits=1, distill_steps=1, holdout_samples=2, calibration_samples=2)
    users = PersonalizedTrainer(str(model_path), config, output=tmp_path, recipe=RECIPE)
    made = users.create_variant("alice", rows(1))
    assert made.artifact.kind == "delta"
    answer = users.serve_variant("alice", "1?", max_new_tokens=8)
    assert isinstance(answer, str)
    assert users.serve_variant("alice").generate("1?", max_new_tokens=8) == answer

    record = made.output / "run.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"artifact": None}))
    assert users.variants.at("alice", 1) is None
    rmtree(made.artifact.path)
    assert users.create_variant("alice", rows(1)) == made and made.bytes > 0

    again = users.update_variant("alice", rows(2))
    assert again.version == 2 and again.artifact.kind == "delta"
    assert users.variants.store.get("alice").number == 2


def test_an_update_is_trained_as_the_version_before_where_nothing_else_is_said(
    model_path: Path, tmp_path: Path
) -> None:
    """Whoever opens a folder of variants by its base alone goes on with the adapter, the optimizer and the steps of each."""
    said = {**RECIPE, "optimizer": "sgd"}
    with PersonalizedTrainer(str(model_path), None, output=tmp_path, recipe=said) as users:
        users.create_variant("alice", rows(1), max_steps=2)
    with PersonalizedTrainer(str(model_path), None, output=tmp_path) as users:
        again = users.update_variant("alice", rows(2))
    before, after = (json.loads((tmp_path / f"users/alice/{n}/run.json").read_text())["recipe"] for n in (1, 2))
    assert after["adapter"].pop("adapter_name_or_path") and again.version == 2
    assert all(after[key] == before[key] for key in ("adapter", "optimizer", "scheduler", "train"))


def test_users_of_other_ranks_train_alone_and_stop_nobody(model_path: Path, tmp_path: Path) -> None:
    """A process that updates variants of one rank creates those of another; a recipe of another rank fails for one user."""
    quick = {**RECIPE, "train": RECIPE["train"] | {"max_steps": 2, "plot": False}}
    with PersonalizedTrainer(str(model_path), None, output=tmp_path, recipe=quick) as users:
        users.create_variant("ann", rows(1))
    with PersonalizedTrainer(str(model_path), None, output=tmp_path) as users:
        users.update_variant("ann", rows(2))
        other = users.create_variant("zoe", rows(3), max_steps=2)
        assert other.trained.details["options"]["rank"] != RECIPE["adapter"]["rank"]
    larger = {**quick, "adapter": {"name": "lora", "rank": 6}}
    with PersonalizedTrainer(str(model_path), None, output=tmp_path, recipe=larger) as users:
        found = users.create_variants({"ann": rows(4), "ben": rows(5)}, update=True)
    assert "has rank 4" in str(found["ann"]) and isinstance(found["ben"], Variant)
    (tmp_path / "users/ann/2/model/adapter_model.safetensors").write_bytes(b"cut off")
    with PersonalizedTrainer(str(model_path), None, output=tmp_path, recipe=quick) as users:
        found = users.create_variants({"ann": rows(4), "cat": rows(5)}, update=True)
    assert "is damaged" in str(found["ann"]) and isinstance(found["cat"], Variant)


def test_who_is_taken_out_of_the_store_may_begin_anew(model_path: Path, tmp_path: Path) -> None:
    """Nobody is served by what is left of him; no version that went on from it comes back."""

    def learnt(seed: int, update: bool = False) -> Variant | GymError:
        with PersonalizedTrainer(str(model_path), None, output=tmp_path, recipe=RECIPE) as users:
            return users.create_variants({"ann": rows(seed)}, update=update)["ann"]

    first, second = learnt(1), learnt(2, update=True)
    assert isinstance(first, Variant) and isinstance(second, Variant) and second.version == 2
    old = adapter_in(second.output)
    assert CliRunner().invoke(variants, ["remove", "ann", "--store", str(tmp_path)]).exit_code == 0
    anew = learnt(3, update=True)
    assert isinstance(anew, Variant) and anew.version == 1
    again = learnt(2, update=True)
    assert isinstance(again, Variant) and again.version == 2
    assert any((value != old[name]).any() for name, value in adapter_in(again.output).items())


def test_preferences_are_pairs(trainer: PersonalizedTrainer) -> None:
    made = trainer.create_variant("bob", preferences=rows(2, pairs=True))
    assert json.loads((made.output / "run.json").read_text())["recipe"]["algorithm"]["name"] == "dpo"
    with pytest.raises(RecipeError, match="either"):
        trainer.create_variant("bob")
    with pytest.raises(DataError, match="no pair"):
        trainer.create_variant("bob", preferences=rows(2))


def test_who_cannot_share_trains_alone(model_path: Path, tmp_path: Path) -> None:
    """A full fine-tune, and pairs that a variant goes on with: the same calls, runs of their own, and one store."""
    quick = {"train": RECIPE["train"] | {"max_steps": 2, "plot": False}}
    users = PersonalizedTrainer(str(model_path), QUICK, output=tmp_path, recipe={**quick, "adapter": "full"})
    whole = users.create_variant("whole", rows(1))
    assert whole.trained.kind == "model" and whole.artifact.kind == "delta"
    assert users.create_variant("whole", rows(1)) == whole
    more = PersonalizedTrainer(
        {"path": str(model_path), "add_tokens": ["<a>"]},
        None,
        output=tmp_path / "more",
        recipe={**quick, "adapter": "lora"},
    )
    assert {"model.embed_tokens.weight"} < {
        name.removeprefix("base_model.model.") for name in adapter_in(more.create_variant("larger", rows(1)).output)
    }
    with pytest.raises(RecipeError, match="not gone on with"):
        users.update_variant("whole", rows(2))

    users = PersonalizedTrainer(str(model_path), QUICK, output=tmp_path, recipe={**quick, "adapter": RECIPE["adapter"]})
    users.create_variant("pairs", rows(1))
    again = users.update_variant("pairs", preferences=rows(2, pairs=True))
    assert again.version == 2 and again.artifact.kind == "delta"
    asked: list[Any] = [
        ("whole", "1?"),
        ("pairs", "1?"),
        ("nobody", "1?"),
        ("pairs", []),
        ("pairs", "\ud800"),
        ("whole", "1?"),
    ]
    first, second, none, *unread, last = users.serve_variants(asked, max_new_tokens=8)
    assert isinstance(first, str) and isinstance(second, str) and first == last
    assert all(isinstance(each, GymError) and "prompt" in str(each) for each in unread), unread
    assert isinstance(none, GymError) and "nobody" in str(none)

    def tokens() -> set[str]:
        held = map(described, kept(cache_dir() / "tokens"))
        return {Path(name).parent.name for each in held for name in each["sources"] if str(tmp_path) in name}

    before = tokens()
    users.remove_variant("pairs")
    with pytest.raises(GymError, match="no variant"):
        users.serve_variant("pairs")
    assert not (tmp_path / "users/pairs").exists()
    assert before - tokens() == {"pairs"}, "rows stay as tokens"
    users.close()


def test_what_is_refused_is_not_served(model_path: Path, tmp_path: Path) -> None:
    """The version before stays; the adapter is kept, and a quantizer that takes it is enough."""
    strict = {**QUICK, "max_kl": 1e-9}
    users = PersonalizedTrainer(str(model_path), QUICK, output=tmp_path, recipe=RECIPE)
    users.create_variant("alice", rows(1))
    users.close()
    users = PersonalizedTrainer(str(model_path), strict, output=tmp_path, recipe=RECIPE)
    for _ in range(2):
        with pytest.raises(GymError, match="max_kl"):
            users.update_variant("alice", rows(2))
    assert users.variants.served("alice").version == 1 and users.variants.store.get("alice").number == 1
    steps = (tmp_path / "users/alice/2/metrics.jsonl").read_text()
    users.close()
    users = PersonalizedTrainer(str(model_path), QUICK, output=tmp_path, recipe=RECIPE)
    assert users.update_variant("alice", rows(2)).version == 2
    assert (tmp_path / "users/alice/2/metrics.jsonl").read_text() == steps, "nothing was trained anew"
    quality = users.variants.store.get("alice").quality
    assert quality["recovered"] is not None and quality["holdout_of"] == "train"
    users.close()


def test_a_user_who_fails_harms_no_other(trainer: PersonalizedTrainer, tmp_path: Path) -> None:
    given = {"good": rows(3), "empty": [], "odd": [{"what": 1}, {"what": 2}], "../up": rows(1), "fine": rows(4)}
    found = trainer.create_variants(given)
    assert list(found) == list(given)
    assert {name for name, made in found.items() if isinstance(made, Variant)} == {"good", "fine"}
    assert isinstance(found["empty"], DataError) and isinstance(found["../up"], RecipeError)
    assert isinstance(found["odd"], GymError)
    deep = tmp_path / "deep.jsonl"
    deep.write_text(f"{'[' * 200_000}\n" * 2)
    (tmp_path / "deep.json").write_text("[" * 200_000)
    surrogate = [{"messages": [{"role": "user", "content": "\ud800"}, {"role": "assistant", "content": "x"}]}] * 2
    strange: dict[str, Any] = {
        "number": 5,
        "bytes": b"ab",
        "one-row": rows(1)[0],
        "nothing": None,
        "surrogate": surrogate,
    }
    strange |= {"object": [{"messages": object()}] * 2, "deep-lines": deep, "deep": deep.with_suffix(".json")}
    unread = trainer.create_variants(strange)
    assert list(unread) == list(strange) and all(isinstance(each, DataError) for each in unread.values()), unread
    again = trainer.create_variants({"odd": rows(5)})  # nothing was trained, so other rows are welcome
    assert isinstance(again["odd"], Variant), again


def test_a_quantizer_that_is_not_there_is_named(model_path: Path, tmp_path: Path) -> None:
    with pytest.raises(GymError, match="nowhere"):
        PersonalizedTrainer(str(model_path), "nowhere", output=tmp_path, recipe=RECIPE).create_variant("u", rows(1))


def test_the_command(model_path: Path, tmp_path: Path) -> None:
    """Users who cannot be trained are named, and the exit code says so; the same command again trains nothing anew."""
    users = tmp_path / "users"
    users.mkdir()
    lines = [json.dumps(row) for row in rows(1)]
    wrong = {
        "empty": "",
        "one": lines[0],
        "torn": f"{lines[0]}\n{lines[1][:20]}\n{lines[1]}\n",
        "nul": lines[0],
        "-": "",
    }
    for user in ("ann", *wrong, "zoe"):
        (users / f"{user}.jsonl").write_text(wrong.get(user, "\n".join(lines)))
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(json.dumps({"model": str(model_path), "algorithm": "sft", **RECIPE}))
    words = [str(recipe), "--users", str(users), f"output={tmp_path / 'out'}", "train.max_steps=3", "--json"]
    reports = []
    for _ in range(2):
        result = CliRunner().invoke(personalize, words)
        assert result.exit_code == 1 and result.stdout, (result.output, result.exception)
        reports.append(json.loads(result.stdout.splitlines()[-1]))
    assert set(reports[0]["variants"]) == {"ann", "zoe"} and set(reports[0]["failed"]) == set(wrong)
    assert all(
        said in reports[0]["failed"][user]
        for user, said in zip(wrong, ("no rows", "1 row", "torn.jsonl:2", "nul", "-"), strict=True)
    )
    assert reports[0] == reports[1]
    size = sum(each["bytes"] for each in reports[0]["variants"].values()) / 2
    assert f", {size:,.0f} bytes each" in CliRunner().invoke(personalize, words[:-1]).output
    listed = CliRunner().invoke(variants, ["verify", "--store", str(tmp_path / "out"), "--json"])
    assert listed.exit_code == 0 and json.loads(listed.stdout)["sound"] == 2
    record = json.loads((tmp_path / "out/users/ann/1/run.json").read_text())
    assert record["status"] == "finished" and record["training"]["steps"] == 3 and record["resumed"] == 0

    for user in wrong:
        (users / f"{user}.jsonl").unlink()
    (users / "ann.jsonl").write_text("\n".join(json.dumps(row) for row in rows(2)))
    (users / "new.jsonl").write_text("\n".join(lines))
    assert "--update" in CliRunner().invoke(personalize, words).output
    for _ in range(2):  # whose rows are those that it learnt last stays as it is
        result = CliRunner().invoke(personalize, [*words, "--update"])
        assert result.exit_code == 0, (result.output, result.exception)
        made = json.loads(result.stdout.splitlines()[-1])["variants"]
        assert {user: each["version"] for user, each in made.items()} == {"ann": 2, "new": 1, "zoe": 1}
