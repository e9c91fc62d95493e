"""The form and the text of a recipe, what is said of them, and what a text may not say."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from webui_browser import RECIPE

from gym_core.errors import RecipeError
from gym_core.yamlfile import parse_yaml
from gym_serve.api.errors import HTTPProblem
from gym_webui.allowed_inputs import check_options, check_recipe, outside
from gym_webui.options import form
from gym_webui.recipe_report import report
from gym_webui.recipe_text import changed
from gym_webui.site import Site

THEIRS = """model_name_or_path: tiny
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 4
dataset: rows.json
output_dir: runs/theirs
template: qwen
"""


def data(text: str) -> Any:
    return parse_yaml(text, "text").data


@pytest.mark.parametrize(
    "path, value, section",
    [
        (["adapter", "rank"], "16", {"name": "lora", "rank": 16}),
        (["adapter", "rank"], None, "lora"),
        (["adapter"], "dora", "dora"),
        (["adapter"], None, None),
        (["model", "revision"], "main", {"path": "tiny", "revision": "main"}),
        (["data", "sources"], "[a.json, b.json]", {"sources": ["a.json", "b.json"]}),
        (["data", "cutoff"], "64", {"sources": "rows.json", "cutoff": 64}),
        (["optimizer", "weight_decay"], "1e-2", {"weight_decay": 0.01}),
        (["callbacks"], "[early_stopping]", ["early_stopping"]),
        (
            ["train", "learning_rate"],
            "1e-4",
            {"max_steps": 3, "batch_size": 2, "log_every": 1, "plot": False, "learning_rate": 1e-4},
        ),
        (["output"], "no", "no"),
    ],
)
def test_a_change_of_the_form_is_one_key_of_the_text(path: list[str], value: str | None, section: Any):
    found = data(changed(RECIPE, path, value))
    assert found.get(path[0]) == section
    assert {key: item for key, item in found.items() if key != path[0]} == {
        key: item for key, item in data(RECIPE).items() if key != path[0]
    }


def test_a_change_is_undone_by_the_value_before():
    once = changed(RECIPE, ["train", "epochs"], "3")
    assert data(changed(once, ["train", "epochs"], None)) == data(RECIPE)


@pytest.mark.parametrize("path", [["nothing"], [["a"]], ["adapter", {}], [1]])
def test_a_path_that_is_none_is_refused(path: list[Any]):
    with pytest.raises(RecipeError):
        changed(RECIPE, path, "1")


def test_problems_are_those_of_the_command(browser: TestClient, folder: Path):
    """At their lines and keys, word for word but for the name of the file."""
    text = RECIPE.replace("max_steps", "max_stpes").replace("rank: 2", "rank: none")
    (folder / "recipe.yaml").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "gym_core.cli", "validate", "recipe.yaml", "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    told = browser.post("/recipe/read", json={"text": text}).json()
    assert told["problems"] == json.loads(done.stdout or done.stderr)["problems"] != []
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == [], "the text was left behind"


def test_a_typing_error_leaves_the_form_and_another_dialect_is_read(browser: TestClient):
    wrong = browser.post("/recipe/read", json={"text": RECIPE.replace("adapter", "adpater")}).json()
    assert (
        wrong["own"]
        and wrong["problems"][0]["fix"] == "did you mean `adapter`?"
        and wrong["sections"]["algorithm"] == "sft"
    )
    told = browser.post("/recipe/read", json={"text": THEIRS}).json()
    assert not told["own"] and data(told["converted"])["adapter"]["rank"] == 4
    again = browser.post("/recipe/read", json={"text": told["converted"]}).json()
    assert again["own"] and again["sections"] == told["sections"]


REMOTE = [
    RECIPE.replace("model: tiny", "model: {path: tiny, trust_remote_code: true}"),
    RECIPE.replace("model: tiny", 'model: {path: tiny, "trust_remote_code": "true"}'),
    RECIPE + "trust_remote_code: true\n",
    THEIRS + "trust_remote_code: true\n",
]
OUTSIDE = [
    RECIPE.replace("model: tiny", "model: /etc"),
    RECIPE.replace("rows.json", f"/{'./' * 2020}etc/passwd"),
    RECIPE.replace("model: tiny", "model: ../other"),
    RECIPE.replace("rows.json", "/etc/passwd"),
    RECIPE.replace("rows.json", "~/rows.json"),
    RECIPE.replace("rows.json", "link/rows.json"),
    RECIPE.replace("runs/one", "/tmp/one"),
    RECIPE.replace("runs/one", "../one"),
    RECIPE.replace("runs/one", "link/one"),
]


@pytest.mark.parametrize("text", [*REMOTE, *OUTSIDE])
def test_what_a_text_may_not_say_is_a_problem(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str):
    """Asked in this process; the next test asks as the pages do."""
    (folder / "link").symlink_to(folder.parent)
    (folder / "new.yaml").write_text(text, encoding="utf-8")
    monkeypatch.chdir(folder)
    told = report(folder / "new.yaml")
    assert check_recipe(Site(folder.resolve()), told["written"], told["canonical"])


@pytest.mark.parametrize("text", [REMOTE[2], RECIPE.replace("rows.json", "link/rows.json")])
def test_a_text_that_is_refused_is_neither_saved_nor_started_nor_read(browser: TestClient, folder: Path, text: str):
    (folder.parent / "rows.json").write_text('[{"instruction": "secret", "output": "secret"}]', encoding="utf-8")
    (folder / "link").symlink_to(folder.parent)
    assert browser.post("/recipe/read", json={"text": text}).json()["problems"], "it is valid"
    assert (
        browser.post("/recipe/start", json={"name": "new.yaml", "text": text}).status_code == 403
    )  # which saves it first
    assert "secret" not in browser.post("/recipe/preview", json={"text": text}).text
    assert not (folder / "new.yaml").exists() and not (folder / "runs").exists()


@pytest.mark.parametrize("text", ["/etc", " /etc", "/etc\n", "/a\nb/c", "/" + "./" * 2020 + "etc", "a/../" * 900 + "../b", "file:///etc",
    "local:///etc", "zip://a::/etc/b", "~/a", "link/a", "a/../../b"])  # fmt: skip
def test_no_way_of_writing_a_path_leads_out(folder: Path, text: str):
    (folder / "link").symlink_to(folder.parent)
    assert outside(Site(folder.resolve()), text) and not outside(Site(folder.resolve(), (Path("/"),)), text[:4000])


@pytest.mark.parametrize(
    "text", ["tiny", "owner/model", "runs/one", "https://host/a", "{% if a %}\n/b{% endif %}", "a/" * 500_000]
)
def test_prose_and_names_are_no_paths_that_lead_out(folder: Path, text: str):
    assert not outside(Site(folder.resolve()), text)


@pytest.mark.parametrize(
    "value",
    ["/etc/a", '"/etc/a"', r'"\x2fetc/a"', "[/etc/a]", "{a: /etc/a}", r'{"trust_r\x65mote_code": true}', "remote_code"],
)
def test_options_are_checked_as_the_command_reads_them(folder: Path, value: str):
    assert check_options(Site(folder.resolve()), {"type": "[q4_0, q8_0]"}) == ["type=[q4_0, q8_0]"]
    with pytest.raises(HTTPProblem):
        check_options(Site(folder.resolve()), {"imatrix": value})


def test_a_preview_shows_what_is_trained_on_and_escapes_it(browser: TestClient, folder: Path):
    rows = [{"instruction": "<b>bold</b>", "output": "<script>x</script>"}]
    (folder / "rows.json").write_text(json.dumps(rows * 3), encoding="utf-8")
    shown = browser.post("/recipe/preview", json={"text": RECIPE}).text
    assert "<mark>&lt;script&gt;x&lt;/script&gt;" in shown and "<b>bold" not in shown


def test_what_can_be_named_here_is_offered(browser: TestClient, folder: Path) -> None:
    """Families and files of rows, and no recipe or other file."""
    (folder / "data").mkdir()
    (folder / "data" / "more.jsonl.gz").write_bytes(b"")
    (folder / "notes.md").write_text("none")
    page = browser.get("/recipe/").text
    offered = {
        name: re.findall('value="([^"]+)"', part) for name, part in re.findall('id="known-(.*?)">(.*?)</datal', page)
    }
    assert "tiny" in offered["model"] and offered["data"] == ["data/more.jsonl.gz", "rows.json"]


def test_forms_come_from_the_config_classes():
    options = {option["name"]: option for option in form("adapters", "lora")["options"]}
    assert options["rank"]["default"] == "8" and "integer" in options["rank"]["type"] and options["rank"]["doc"]
    assert options["create_new_adapter"]["choices"] == ["true", "false"]
    train = {option["name"]: option for option in form("train", "train")["options"]}
    assert train["max_steps"]["default"] == "none"


@pytest.mark.parametrize("kind, name", [("adapters", "no-such"), ("commands", "train"), ("kinds", "servers"), ("", "")])
def test_what_is_no_component_has_no_form(browser: TestClient, kind: str, name: str):
    assert browser.get("/recipe/form", params={"kind": kind, "name": name}).status_code == 404
