"""Recipes: sections, the short form and dialects, overrides, and every problem told with its line, key, reason and remedy."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from gym_core import PluginError, Recipe, RecipeError, load_recipe
from gym_core.sections import SECTIONS


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "r.yaml"
    path.write_text(text)
    return path


def problems(tmp_path: Path, text: str, *overrides: str) -> list[tuple[str, str, str, str]]:
    with pytest.raises((RecipeError, PluginError)) as caught:
        load_recipe(write(tmp_path, text), overrides)
    for problem in caught.value.problems:
        assert len(str(problem).splitlines()) <= 4
    return [(p.where.rpartition("/")[2], p.key, p.why, p.fix) for p in caught.value.problems]


def test_the_top_level_keys_are_frozen():
    assert sorted(SECTIONS) == sorted(
        [
            "model",
            "data",
            "algorithm",
            "adapter",
            "optimizer",
            "scheduler",
            "quantization",
            "train",
            "distributed",
            "export",
            "callbacks",
            "hooks",
            "output",
        ]
    )


def test_short_and_long_forms_mean_the_same(toys, tmp_path):
    short = load_recipe(write(tmp_path, "model: words\ndata: [a.txt, b.txt]\nalgorithm: toy\n"))
    long = load_recipe(
        {
            "model": {"backend": "transformers", "path": "words"},
            "data": {"name": "dataset", "sources": [{"name": "lines", "path": "a.txt"}, {"path": "b.txt"}]},
            "algorithm": {"name": "toy", "strength": 1.0},
        }
    )
    assert short.fingerprint() == long.fingerprint()
    assert short.algorithm.strength == 1.0
    assert [source.path for source in short.data.sources] == ["a.txt", "b.txt"]


def test_a_boolean_is_no_number_and_a_number_is_finite(toys, tmp_path):
    """Python takes `true` for 1: `max_steps: true` would be a run of one step."""
    text = "algorithm: {name: toy, strength: true}\ntrain: {max_steps: true, save_every: true, shuffle: false}\n"
    found = problems(tmp_path, text)
    assert [key for _, key, _, _ in found] == ["algorithm.strength", "train.max_steps", "train.save_every"]
    assert {why for _, _, why, _ in found} == {"input should be a number, and no boolean (got True)"}
    found = problems(tmp_path, "algorithm: {name: toy, strength: .inf}\n", "train.learning_rate=.inf")
    assert [why for _, _, why, _ in found] == ["input should be a finite number (got inf)"] * 2
    either = load_recipe(write(tmp_path, "model: w\nalgorithm: toy\ntrain: {gradient_checkpointing: true}\n"))
    assert either.train.gradient_checkpointing is True


def test_canonical_form_is_a_fixed_point(toys, tmp_path):
    first = load_recipe(
        write(tmp_path, "model: w\ndata: a.txt\nalgorithm: {name: toy, strength: 2}\ntrain: {epochs: 2}\n")
    )
    again = load_recipe(first.canonical())
    assert again.canonical() == first.canonical()
    assert again.fingerprint() == first.fingerprint()
    assert load_recipe(first.canonical(everything=True)).fingerprint() == first.fingerprint()


def test_what_changes_no_number_changes_no_fingerprint(toys):
    base = {"model": "w", "algorithm": "toy"}
    same = load_recipe({**base, "output": "elsewhere", "train": {"plot": False, "keep_last": 9}, "export": "shout"})
    assert load_recipe(base).fingerprint() == same.fingerprint()
    assert load_recipe({**base, "train": {"seed": 1}}).fingerprint() != same.fingerprint()


def test_a_key_marks_a_file_of_a_dialect_that_a_plugin_translates(toys, tmp_path):
    recipe = load_recipe(write(tmp_path, "say: words\nloudly: 0.5\nmax_steps: 3\noutput: out\n"))
    assert (recipe.model.path, recipe.algorithm.strength, recipe.output) == ("words", 0.5, "out")
    assert (recipe.train.max_steps, recipe.train.seed) == (3, 42)
    assert load_recipe({"say": "words", "train": {"seed": 1}, "seed": 1}).train.seed == 1


def test_what_a_dialect_translates_is_told_by_the_users_key_and_line(toys, tmp_path):
    found = problems(tmp_path, "loudly: very\nsay: words\nadaptor: x\n")
    assert [(where, key) for where, key, _, _ in found] == [("r.yaml:1", "loudly"), ("r.yaml:3", "adaptor")]
    assert found[1][3] == "did you mean `adapter`?"


def test_a_dialect_that_is_not_there_or_wrong_is_named(toys, tmp_path):
    with pytest.raises(PluginError, match="pip install gym-llamafactory") as caught:
        load_recipe(write(tmp_path, "model_name_or_path: words\n"))
    assert caught.value.problems[0].where.endswith("r.yaml:1")
    with pytest.raises(PluginError, match="translates into `everything`, which is no section"):
        load_recipe({"stray": 1})
    with pytest.raises(RecipeError, match="marks another dialect than `say`"):
        load_recipe({"say": "words", "stray": 1})


def test_a_dialect_that_raises_or_translates_into_nothing_is_named(toys, install):
    code = "def torn(data, found):\n    return {}['oops']\ndef void(data, found):\n    return None\n"
    install("gym-odd", {"odd": code}, {"gym.dialects": {"torn": "odd:torn", "void": "odd:void"}})
    for key, why in {"torn": "raised KeyError: 'oops'", "void": "translates into NoneType"}.items():
        with pytest.raises(PluginError, match=why) as caught:
            load_recipe({key: 1})
        assert caught.value.problems[0].where == f"gym-odd 1.0 (gym.dialects: {key})"


def test_what_the_kernel_knows_marks_no_dialect(toys):
    assert load_recipe({"model": "w", "algorithm": "toy", "seed": 7}).train.seed == 7


def test_short_form_fills_fields_of_the_selected_component(toys, tmp_path):
    recipe = load_recipe(write(tmp_path, "model: w\nalgorithm: toy\nstrength: 3\nquantization: {method: shrink}\n"))
    assert recipe.algorithm.strength == 3
    assert recipe.quantization.letters == 1


def test_a_key_that_two_components_have_goes_to_the_one_that_is_not_written_out(toys, tmp_path):
    toys("gym-twin", {"twin": TWIN}, {"gym.quantizers": {"twin": "twin:Twin"}})
    recipe = load_recipe(write(tmp_path, "model: w\nalgorithm: toy\nquantization: {method: twin}\nstrength: 3\n"))
    assert (recipe.algorithm.strength, recipe.quantization.strength) == (3, 2)
    recipe = load_recipe(write(tmp_path, "model: w\nalgorithm: {name: toy}\nquantization: twin\nstrength: 3\n"))
    assert (recipe.algorithm.strength, recipe.quantization.strength) == (1, 3)
    [(_, key, why, _)] = problems(tmp_path, "model: w\nalgorithm: toy\nquantization: twin\nstrength: 3\n")
    assert key == "strength" and why == "could mean `algorithm.strength` and `quantization.strength`"


TWIN = '''
from gym_core import Quantizer
class Twin(Quantizer):
    """Has an option that the toy algorithm has too."""
    strength: float = 2
    """How strong."""
'''

NESTED = '''
from typing import Literal
from gym_core import Config, Quantizer
class Grid(Config):
    """What numbers there are."""
    shape: Literal["even", "dense"]
    """How they lie (`form` in Elsewhere)."""
    step: float = 1
    """How far apart."""
class Twin(Quantizer):
    """Has options within an option."""
    target = "twin:Twin"
    grid: Literal["even", "dense"] | Grid = "even"
    """A shape, or all."""
'''


def test_an_unknown_key_gets_the_advice_of_plugins(toys, tmp_path):
    text = "def advise(key, near):\n    return ('is mine', 'leave it') if key == 'mine' else None\n"
    toys("gym-advice", {"advice": text}, {"gym.advice": {"all": "advice:advise"}})
    found = problems(tmp_path, "model: w\nalgorithm: toy\nmine: 2\nyours: 3\n")
    assert found[0] == ("r.yaml:3", "mine", "is mine", "leave it")
    assert found[1][1:] == ("yours", "unknown key", "see `gym schema` for every key")


def test_advice_that_fails_is_said_of_its_package_and_others_are_asked(toys, tmp_path):
    text = "def advise(key, near):\n    return ('is mine', 'leave it') if key == 'mine' else None\n"
    toys("gym-advice", {"advice": text}, {"gym.advice": {"last": "advice:advise"}})
    raising = "def advise(key, near):\n    raise KeyError(key)\ndef half(key, near):\n    return ('why',)\n"
    toys("gym-bad", {"bad_advice": raising}, {"gym.advice": {"first": "bad_advice:advise"}})
    toys("gym-half", {"half_advice": raising}, {"gym.advice": {"first": "half_advice:half"}})
    toys("gym-none", {"no_advice": "import absent_module\n"}, {"gym.advice": {"first": "no_advice:advise"}})
    found = problems(tmp_path, "model: w\nalgorithm: {name: toy, mine: 1}\nmine: 2\nyours: 3\n")
    told = {"mine": "is mine", "yours": "unknown key", "algorithm.mine": "is mine"}
    assert {key: why for _, key, why, _ in found if key} == told
    said = [(where.split()[0], why, fix) for where, key, why, fix in found if not key]
    assert [(where, fix) for where, _, fix in said] == [
        *((name, f"update or uninstall {name}") for name in ("gym-bad", "gym-half")),
        ("gym-none", "reinstall gym-none"),
    ]
    assert "bad_advice:advise, asked about the key `mine`, raised KeyError" in said[0][1]


def test_contradiction_between_section_and_short_form_is_an_error(toys, tmp_path):
    [(_, key, why, _)] = problems(tmp_path, "model: w\nalgorithm: toy\ntrain: {seed: 1}\nseed: 2\n")
    assert key == "seed" and "contradicts `train.seed`" in why


def test_all_problems_are_told_together_with_their_lines(toys, tmp_path):
    text = """\
model: w
algorithm:
  name: toy
  strenth: 2
train:
  epochs: many
  seeed: 1
data:
  sources:
    - {path: a, limt: 3}
"""
    found = problems(tmp_path, text)
    assert [(where, key) for where, key, _, _ in found] == [
        ("r.yaml:4", "algorithm.strenth"),
        ("r.yaml:6", "train.epochs"),
        ("r.yaml:7", "train.seeed"),
        ("r.yaml:10", "data.sources[0].limt"),
    ]
    assert found[0][3] == "did you mean `strength`?"
    assert "number" in found[1][2] and "'many'" in found[1][2]
    assert found[3][3] == "did you mean `limit`?"


@pytest.mark.parametrize("name", ["rows.jsonl", "openai/gsm8k"])
def test_a_file_in_the_place_of_a_name_is_answered_with_its_key(toys, tmp_path, name):
    [(where, key, why, fix)] = problems(tmp_path, f"model: w\nalgorithm: toy\ndata:\n  sources: [{{name: {name}}}]\n")
    assert (where, key) == ("r.yaml:4", "data.sources[0].name")
    assert (why, fix) == (f"`{name}` is no component", f"did you mean `path: {name}`?")


def test_a_key_of_options_within_an_option_is_answered_with_theirs(toys, tmp_path):
    """Where the field takes a word too, nothing is said of that: what was meant is plain."""
    toys("gym-twin", {"twin": NESTED}, {"gym.quantizers": {"twin": "twin:Twin"}})
    given = "model: w\nalgorithm: toy\nquantization: {name: twin, grid: {form: even, stepp: 2, zzz: 1}}\n"
    found = {key: (why, fix) for _, key, why, fix in problems(tmp_path, given)}
    assert found == {
        "quantization.grid.form": ("unknown key", "did you mean `shape`?"),
        "quantization.grid.shape": ("is required", ""),
        "quantization.grid.stepp": ("unknown key", "did you mean `step`?"),
        "quantization.grid.zzz": ("unknown key", "Grid has shape, step"),
    }


def test_a_key_of_a_component_without_options_names_it(toys, tmp_path):
    text = "model: w\nalgorithm: toy\ndistributed: {name: alone, processes: 2}\n"
    [(_, key, _, fix)] = problems(tmp_path, text)
    assert (key, fix) == ("distributed.processes", "Alone has no options")


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("gradient_accumulation_steps", "accumulate"),
        ("warmup_steps", "warmup"),
        ("lr", "learning_rate"),
        ("epoch", "epochs"),
        ("fp16", "precision"),
    ],
)
def test_a_name_of_other_software_is_answered_with_ours(toys, tmp_path, key, meant):
    for text in (f"{key}: 3\n", f"train: {{{key}: 3}}\n"):
        [(_, _, why, fix)] = problems(tmp_path, f"model: w\nalgorithm: toy\n{text}")
        assert (why, fix) == ("unknown key", f"did you mean `{meant}`?")


def test_a_name_of_other_software_may_be_of_any_section(toys, tmp_path):
    """`power` is the algorithm's `strength`, though the quantizer has an option `strength` too that says nothing of it."""
    toys("gym-twin", {"twin": TWIN}, {"gym.quantizers": {"twin": "twin:Twin"}})
    [(_, _, _, fix)] = problems(tmp_path, "model: w\nalgorithm: toy\nquantization: twin\npower: 3\n")
    assert fix == "did you mean `strength`?"


def test_a_key_in_the_wrong_section_is_answered_with_the_right_one(toys, tmp_path):
    given = "model: w\nalgorithm: {name: toy, seed: 1}\ntrain: {strength: 3, power: 3, output: x}\n"
    found = {key: fix for _, key, _, fix in problems(tmp_path, given)}
    assert found["algorithm.seed"] == "did you mean `train.seed`?"
    assert found["train.strength"] == found["train.power"] == "did you mean `algorithm.strength`?"
    assert found["train.output"] == "did you mean the section `output`?"


def test_a_key_that_others_of_the_kind_have_is_not_sent_to_another_section(toys, tmp_path):
    """`epsilon` of an algorithm is the range of a clip, and that of an optimizer a small number."""
    twins = {"gym.quantizers": {"twin": "twin:Twin", "plain": "twin:Plain"}}
    toys("gym-twin", {"twin": TWIN + "class Plain(Quantizer):\n    letters: int = 1\n"}, twins)
    [(_, key, *told)] = problems(tmp_path, "model: w\nalgorithm: toy\nquantization: {method: plain, strength: 3}\n")
    assert (key, *told) == (
        "quantization.strength",
        "an option of `twin`, not of this one",
        "leave it out, or name one of them",
    )


@pytest.mark.parametrize("value", ["lora", "null", ""])
def test_misspelt_top_level_key(toys, tmp_path, value):
    [(where, key, why, fix)] = problems(tmp_path, f"model: w\nalgorithm: toy\nadaptor: {value}\n")
    assert (where, key, why, fix) == ("r.yaml:3", "adaptor", "unknown key", "did you mean `adapter`?")


def test_an_option_in_the_short_form_without_a_value_is_what_it_is_without(toys, tmp_path):
    recipe = load_recipe(write(tmp_path, "model: w\nalgorithm: toy\nmax_steps:\nseed: null\n"))
    assert (recipe.train.max_steps, recipe.train.seed) == (None, 0)


def test_null_on_the_command_line_takes_back_what_the_file_says(toys, tmp_path):
    """So one may go over to what excludes it. Where None is a value it is that; what was not said cannot be taken back."""
    text = "model: w\nalgorithm: {name: toy, strength: 2.0}\ntrain: {batch_size: 4, max_steps: 9, load_best_model_at_end: true}\n"
    path = write(tmp_path, text)
    asked = ["train.batch_size=null", "train.batch_tokens=64", "algorithm.strength=null", "train.max_steps=null"]
    recipe = load_recipe(path, asked)
    assert (recipe.train.batch_tokens, recipe.train.max_steps, recipe.algorithm.strength) == (64, None, 1.0)
    assert "batch_size" not in recipe.canonical()["train"] and "strength" not in recipe.canonical()["algorithm"]
    assert recipe.canonical()["train"]["max_steps"] is None
    path = write(tmp_path, "model: w\nalgorithm: toy\ndata: {sources: [a, b], cutoff: 3}\n")
    assert load_recipe(path, ["data.cutoff=null"]) == load_recipe(
        write(tmp_path, "model: w\nalgorithm: toy\ndata: [a, b]\n")
    )
    for text in ("model: w\nalgorithm: toy\n", "model: w\nalgorithm: toy\ntrain: {batch_size: null}\n"):
        [(where, key, why, _)] = problems(tmp_path, text, "train.batch_size=null")
        assert (where, key) == ("command line", "train.batch_size") and "got None" in why
    [(where, key, why, _)] = problems(tmp_path, "model: w\nalgorithm: toy\ntrain: {batch_size: null}\n")
    assert where == "r.yaml:3" and "got None" in why


def test_missing_plugin_says_what_to_install(toys, tmp_path, monkeypatch):
    with pytest.raises(PluginError) as caught:
        load_recipe({"model": "w", "algorithm": "gspo"})
    assert "gspo" in str(caught.value) and caught.value.code == 3


def test_overrides_reach_sections_and_the_short_form(toys, tmp_path):
    path = write(tmp_path, "model: w\nalgorithm: toy\n")
    recipe = load_recipe(
        path, ["algorithm.strength=4", "train.epochs=0.5", "data=[x.txt]", "data.cutoff=7", "learning_rate=1e-3"]
    )
    assert recipe.algorithm.strength == 4 and recipe.train.epochs == 0.5
    assert recipe.data.cutoff == 7 and recipe.data.sources[0].path == "x.txt"
    assert recipe.train.learning_rate == 1e-3
    found = problems(tmp_path, "model: w\nalgorithm: toy\n", "train.epoch=1")
    assert found[0][:2] == ("command line", "train.epoch")
    named = "model: w\nalgorithm: {name: toy, strength: 2}\n"
    assert problems(tmp_path, named, "algorithm=toyy")[0][:2] == ("command line", "algorithm")
    assert problems(tmp_path, "model: w\nalgorithm: toy\n", "adapter.rank=8")[0][:2] == ("command line", "adapter")
    assert problems(tmp_path, "model: w\nalgorithm: toy\nadapter: {}\n", "adapter.rank=8")[0][:2] == (
        "r.yaml:3",
        "adapter",
    )


def test_an_override_of_an_option_keeps_the_component_that_a_short_form_names(toys, install, tmp_path):
    code = """
from typing import Annotated
from pydantic import SerializeAsAny
from gym_core import Slot, Strategy
from toy import Toy
class Around(Toy):
    inner: Annotated[SerializeAsAny[Strategy], Slot("strategies", default="alone")]
class Beside(Strategy):
    volume: int = 1
"""
    groups = {"gym.algorithms": {"around": "around:Around"}, "gym.strategies": {"beside": "around:Beside"}}
    install("gym-around", {"around": code}, groups)
    path = write(tmp_path, "model: w\nalgorithm: {name: around, inner: beside}\n")
    assert load_recipe(path, ["algorithm.inner.volume=5"]).canonical()["algorithm"]["inner"] == {
        "name": "beside",
        "volume": 5,
    }
    path = write(tmp_path, "model: w\nalgorithm: toy\ndata: {sources: a.txt}\n")
    assert load_recipe(path, ["data.sources.limit=3"]).canonical()["data"]["sources"][0]["path"] == "a.txt"


@pytest.mark.parametrize(
    ("override", "key", "why"),
    [
        ("data.sources.0.limit=1", "data.sources", "is a list"),
        ("hooks.0=a", "hooks", "is a list"),
        ("learning_rate.x=1", "learning_rate", "is 0.001, which has no `x`"),
        ("algorithm.strength.x.y=1", "algorithm.strength", "is 2, which has no `x.y`"),
    ],
)
def test_an_override_into_what_has_no_options_is_refused(toys, tmp_path, override, key, why):
    text = "model: w\nalgorithm: {name: toy, strength: 2}\ndata: [a, b]\nlearning_rate: 1e-3\nhooks: [b]\n"
    assert problems(tmp_path, text, override)[0][:3] == ("command line", key, why)


@pytest.mark.parametrize(
    ("given", "key", "why"),
    [
        ("batch_tokens: abc", "train.batch_tokens", "input should be a valid integer or 'auto' (got 'abc')"),
        ("save_every: 0", "train.save_every", "input should be greater than 0 (got 0)"),
        ("skip_steps: 5", "train.skip_steps", "input should be a list (got 5)"),
        ("skip_steps: [1, 0]", "train.skip_steps[1]", "input should be greater than 0 (got 0)"),
        (
            "warmup: 3.5",
            "train.warmup",
            "input should be a valid integer, got a number with a fractional part or less than 1 (got 3.5)",
        ),
        ("epochs: no", "train.epochs", "input should be a valid number (got 'no')"),
    ],
)
def test_a_value_of_no_kind_that_a_key_takes_is_one_problem_at_that_key(toys, tmp_path, given, key, why):
    text = f"model: w\nalgorithm: toy\ntrain: {{{given}}}\n"
    assert [found[1:3] for found in problems(tmp_path, text)] == [(key, why)]


def test_the_item_of_a_list_that_is_wrong_is_named_and_not_the_list(toys, install, tmp_path):
    """Where one name may stand in place of a list of them."""
    code = "from toy import Toy\nclass Many(Toy):\n    names: str | tuple[str, ...] = ''\n"
    install("gym-many", {"many": code}, {"gym.algorithms": {"many": "many:Many"}})
    found = problems(tmp_path, "model: w\nalgorithm: {name: many, names: [a, 5]}\n")
    assert [key for _, key, _, _ in found] == ["algorithm.names[1]"]


def test_a_list_where_one_name_belongs(toys, tmp_path):
    [(where, key, why, _)] = problems(tmp_path, "model: w\nalgorithm: [toy]\n")
    assert (where, key) == ("r.yaml:2", "algorithm") and "list" in why


@pytest.mark.parametrize("named", ["false", "123", "1e5", "[toy]"])
def test_a_name_that_is_no_text_is_no_missing_name(toys, tmp_path, named):
    """`{name: false}` was the default, and the name `1e5` without quotes a missing key."""
    [(where, key, why, _)] = problems(tmp_path, f"model: {{backend: {named}, path: w}}\nalgorithm: toy\n")
    assert (where, key) == ("r.yaml:1", "model.backend") and "expected a name, not" in why


@pytest.mark.parametrize(
    ("output", "why"),
    [
        ("$HOME/runs", "environment variable"),
        ("${RUNS}", "environment variable"),
        ("runs/\udcff", "no UTF-8"),
        ("~nobody-of-this-name/runs", "no home folder is known for `~nobody-of-this-name`"),
        ("''", "is empty"),
    ],
)
def test_an_output_that_nobody_can_mean_or_write_down_is_refused(toys, tmp_path, output, why):
    [(_, key, said, fix)] = problems(tmp_path, "model: words\nalgorithm: toy\n", f"output={output}")
    assert key == "output" and why in said and fix
    assert load_recipe({"model": "words", "algorithm": "toy", "output": "runs/5$"}).output == "runs/5$"


def test_algorithm_is_required_and_may_need_sections(toys, tmp_path):
    assert problems(tmp_path, "model: w\n")[0][1] == "algorithm"
    assert problems(tmp_path, "algorithm: toy\n")[0][1:3] == ("model", "algorithm `toy` needs this section")


def test_explicit_null_for_an_optional_section(toys):
    assert load_recipe({"model": "w", "algorithm": "toy", "adapter": None}).adapter is None


def test_a_mapping_of_python_means_what_a_file_would(toys, tmp_path):
    """Paths are their text, tuples are lists; the mapping that was given stays as it is."""
    given = {"model": "words", "algorithm": "toy", "data": Path("a.txt"), "output": tmp_path / "out", "callbacks": ()}
    recipe = load_recipe(given)
    assert (
        recipe.output == str(tmp_path / "out")
        and recipe.canonical()["data"] == load_recipe({**given, "data": "a.txt"}).canonical()["data"]
    )
    assert given["data"] == Path("a.txt")


@pytest.mark.parametrize(
    ("source", "overrides", "said"),
    [
        ({1: 2}, (), "the key 1 is no text"),
        ({"model": "words", "algorithm": "toy"}, "train.epochs=2", "no str"),
        ({"model": "words", "algorithm": "toy"}, {"train.epochs": 2}, "no dict"),
        ({"model": object(), "algorithm": "toy"}, (), "(?s)not object.*give its path"),
        ("https://example.com/recipe.yaml", (), "(?s)https://example.com/recipe.yaml.*download it first"),
        (Path("http://example.com/recipe.yaml"), (), "http://example.com/recipe.yaml"),
    ],
)
def test_what_cannot_stand_in_a_recipe_is_told(toys, source, overrides, said):
    with pytest.raises(RecipeError, match=said):
        load_recipe(source, overrides)


def test_options_that_a_plugin_groups_in_a_model_of_pydantic_are_to_be_a_config(toys, install):
    """Such a model lets unknown keys pass, and would not be the same recipe when it is read back."""
    code = """
        from gym_core import Algorithm
        from pydantic import BaseModel
        class Inner(BaseModel):
            size: int = 3
        class Nested(Algorithm):
            "Groups options."
            inner: Inner = Inner()
    """
    install("gym-nested", {"nested": code}, {"gym.algorithms": {"nested": "nested:Nested"}})
    with pytest.raises(PluginError, match=r"(?s)inner: a `Inner` cannot be.*gym_core\.Config"):
        load_recipe({"algorithm": {"name": "nested", "inner": {"size": 5}}})


def test_a_recipe_has_a_field_for_each_section():
    assert {item.name for item in fields(Recipe)} == {*SECTIONS, "resolved"}
