"""`gym data preview`, with a toy backend and toy algorithms in place of real ones."""

import json

import pytest
from click.testing import CliRunner
from data_cases import chat

from gym_core.cli import cli
from gym_core.errors import DataError, RecipeError
from gym_data.preview import safe
from gym_testkit.metadata_files import installed_in, write_distribution

MODULE = """
from typing import Annotated, ClassVar
from gym_core import Backend
from gym_data.kinds import DataAlgorithm

class ToyBackend(Backend):
    path: str

class Learn(DataAlgorithm):
    pass

class Compare(DataAlgorithm):
    rows: ClassVar[str] = "preference"

class Judged(DataAlgorithm):
    rows: ClassVar[str] = "feedback"
"""


@pytest.fixture
def toys(tmp_path):
    """A distribution with a backend and two algorithms, installed for this test."""
    algorithms = {"toy-learn": "Learn", "toy-compare": "Compare", "toy-judged": "Judged"}
    points = {"gym.algorithms": {name: f"toys_for_data:{cls}" for name, cls in algorithms.items()}}
    points["gym.backends"] = {"toy": "toys_for_data:ToyBackend"}
    write_distribution(tmp_path / "site", "toys-for-data", points, {"toys_for_data": MODULE})
    with installed_in(tmp_path / "site"):
        yield


def run(*arguments):
    result = CliRunner().invoke(cli, ["data", "preview", *map(str, arguments)])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.stdout


@pytest.fixture
def recipe(tmp_path, model, write):
    """A function that writes a recipe over some rows."""

    def make(rows, algorithm="toy-learn", **options):
        data = {"sources": write(rows), **options}
        content = {
            "model": {"backend": "toy", "path": str(model)},
            "data": data,
            "algorithm": algorithm,
            "optimizer": None,
        }
        path = tmp_path / "recipe.yaml"
        path.write_text(json.dumps({key: value for key, value in content.items() if value}))
        return path

    return make


def test_examples_are_shown_with_what_is_trained(toys, recipe):
    path = recipe([{"messages": chat("a [bold]b", "one")}] * 3, cutoff=512)
    shown = json.loads(run(path, "--count", "2", "--json"))
    assert [example["id"].rpartition(":")[2] for example in shown["examples"]] == ["1", "2"]
    assert [run["text"] for run in shown["examples"][0]["runs"] if run["trained"]] == ["one<|im_end|>"]
    assert "".join(run["text"] for run in shown["examples"][0]["runs"]).startswith("<|im_start|>user\na [bold]b")
    assert (shown["report"]["examples"], shown["report"]["duplicates"]) == (3, 2)
    text = run(path)
    for part in ("a [bold]b", "tokens trained", "duplicates", "█"):
        assert part in text
    (title,) = (line for line in text.splitlines() if line.startswith("tokens of an example"))
    assert all(name in title for name in ("mean", "p50", "p90", "p99", "max"))
    bars = [line for line in text.splitlines() if line.startswith(" <= ")]
    assert len(bars) == 1 and "█" in bars[0]  # all samples are of one length: no bar is drawn for shorter ones
    assert json.loads(run(path, "data.max_samples=1", "--json"))["report"]["rows"] == 1


def test_bars_are_of_signs_that_the_terminal_can_show(toys, recipe):
    path = recipe([{"messages": chat("a", "one")}])
    said = CliRunner(charset="latin-1").invoke(cli, ["data", "preview", str(path)])
    (bar,) = (line for line in said.stdout.splitlines() if line.startswith(" <= "))
    assert "##" in bar and "u2588" not in bar


def test_pairs_are_shown_as_prompt_and_two_answers(toys, recipe):
    path = recipe([{"prompt": "a", "chosen": "b", "rejected": "c", "margin": 2.5}], "toy-compare")
    example = json.loads(run(path, "--json"))["examples"][0]
    said = {run["part"]: run["text"] for run in example["runs"] if run["trained"]}
    assert said == {"chosen": "b<|im_end|>", "rejected": "c<|im_end|>"}
    assert example["judgement"] == "margin 2.5"
    text = run(path)
    assert "prompt: <|im_start|>user" in text and "chosen: b" in text and "rejected: c" in text and "margin 2.5" in text


def test_what_pairs_lack_is_counted_and_shown(toys, recipe):
    good = {"prompt": "a", "chosen": "b", "rejected": "c"}
    rows = [
        good,
        good | {"rejected": "b"},
        good | {"chosen": " "},
        {"chosen": chat("a", "b"), "rejected": chat("d", "c")},
        good | {"chosen": "b" * 60, "rejected": "b" * 61},
        good | {"prompt": "a" * 60},
        good | {"rejected": "d" * 60},
    ]
    path = recipe(rows, "toy-compare", cutoff=40)
    report = json.loads(run(path, "--json"))["report"]
    source = report["sources"][0]
    assert (report["rows"], report["examples"], report["dropped"], report["bad"]) == (7, 3, 4, 0)
    assert source["dropped"] == {
        "both answers are the same": 1,
        "an answer is empty": 1,
        "both answers are the same within the cutoff": 1,
        "nothing to learn within the cutoff": 1,
    }
    assert source["noticed"] == {"pairs with different prompts, each answer learnt after its own": 1}
    assert report["truncated"] == 3
    text = run(path)
    assert "1 left out: both answers are the same" in text and "1 pairs with different prompts" in text


def test_judgements_that_are_all_the_same_are_remarked(toys, recipe):
    rows = [{"messages": chat("a", answer), "label": True} for answer in ("b", "c", "")]
    report = json.loads(run(recipe(rows, "toy-judged"), "--json"))["report"]
    assert report["sources"][0]["noticed"] == {"desirable answers": 2}
    assert report["sources"][0]["dropped"] == {"an answer is empty": 1}
    assert report["notes"] == ["there are no undesirable answers: nothing tells good from bad"]
    both = [*rows, {"messages": chat("a", "b"), "label": False}]
    shown = json.loads(run(recipe(both, "toy-judged"), "--json"))
    assert shown["report"]["notes"] == []
    assert [example["judgement"] for example in shown["examples"]] == ["desirable", "desirable", "undesirable"]


def test_what_the_template_leaves_out_is_counted_and_said(toys, recipe):
    said = {"role": "assistant", "content": "b", "reasoning": "Easy."}
    rows = [{"messages": [{"role": "user", "content": "a", "name": "Ann"}, said]}, {"messages": chat("c", "d")}]
    report = json.loads(run(recipe(rows), "--json"))["report"]
    assert report["sources"][0]["left_out_by_template"] == {"`name` of a message (user)": 1, "thoughts of an answer": 1}
    assert any("in 1 rows the chat template leaves out thoughts of an answer" in note for note in report["notes"])
    assert "leaves out thoughts of an answer" in " ".join(run(recipe(rows)).split())  # wherever the line is broken


def test_marks_of_pictures_in_the_text_are_counted(toys, recipe):
    rows = [{"messages": chat("What is on <image>?", "A cat.")}, {"messages": chat("c", "d")}]
    ((what, count),) = json.loads(run(recipe(rows), "--json"))["report"]["sources"][0]["noticed"].items()
    assert count == 1 and "<image>" in what


def test_columns_with_text_that_the_format_does_not_read_are_said(toys, recipe):
    rows = [{"instruction": "a", "output": "b", "hint": "c", "n": 1}, {"instruction": "a", "input": "x", "output": "d"}]
    (note,) = json.loads(run(recipe(rows), "--json"))["report"]["notes"]
    assert note.endswith("the row format does not read: `hint`")


def test_nothing_left_to_compare_is_an_error_of_four_lines(toys, recipe):
    same = {"prompt": "a", "chosen": "b", "rejected": "b"}
    with pytest.raises(DataError, match="none of its 2 rows can be learnt from") as caught:
        run(recipe([same, same], "toy-compare"))
    assert "both answers are the same (2 rows)" in str(caught.value)
    assert str(caught.value).count("\n") <= 3


def test_what_cannot_be_shown_is_an_error(toys, recipe):
    with pytest.raises(DataError, match="row 1"):
        run(recipe([{"instruction": "a", "output": ""}]))
    with pytest.raises(RecipeError, match="did you mean `cutoff`"):
        run(recipe([{"text": "a"}], cutof=3))


def test_text_cannot_steer_the_terminal():
    assert safe("a\x1b[31mb\tc\n\x07\x9b") == "a␛[31mb\tc\n␇�"
