"""Who comes in, and what replies allow a browser to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient

PAGES = ("/recipe/", "/runs/", "/chat/", "/export/")


@pytest.mark.parametrize("path", [*PAGES, "/", "/runs/list", "/static/app.css", "/nowhere"])
def test_nothing_is_told_without_the_token(browser: TestClient, path: str):
    browser.cookies.clear()
    assert browser.get(path).status_code == 401
    assert browser.get(path, headers={"cookie": "gym-webui-7860=wrong"}).status_code == 401
    assert browser.get(f"{path}?token=wrong").status_code == 401
    assert browser.post(path, json={}).status_code == 401


def test_a_malformed_cookie_of_another_server_of_this_machine_locks_nobody_out(browser: TestClient):
    browser.cookies.clear()
    headers = {"cookie": 'settings={"a": [1]}; odd name=1; gym-webui-7860=a-token-of-the-tests'}
    assert browser.get("/runs/list", headers=headers).status_code == 200


def test_the_link_becomes_a_cookie_that_no_script_and_no_other_site_has(browser: TestClient):
    reply = browser.get("/?token=a-token-of-the-tests")
    assert reply.headers["location"] == "/"
    assert {"HttpOnly", "SameSite=strict"} <= {part.strip() for part in reply.headers["set-cookie"].split(";")}


@pytest.mark.parametrize("path", PAGES)
def test_pages_allow_no_code_of_anybody_else(browser: TestClient, path: str):
    page = browser.get(path)
    assert page.status_code == 200
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
    assert "frame-ancestors 'none'" in policy and page.headers["x-content-type-options"] == "nosniff"
    assert (
        "http://" not in page.text
        and "https://" not in page.text
        and "style=" not in page.text
        and " onclick" not in page.text
    )


def test_a_page_of_a_stranger_cannot_ask(browser: TestClient):
    """A name of theirs that leads here, another origin, and a form, which no preflight goes before."""
    assert browser.get("/runs/list", headers={"host": "evil.example"}).status_code == 421
    assert browser.get("/?token=a-token-of-the-tests", headers={"host": "evil.example"}).status_code == 421
    assert browser.post("/runs/stop", json={}, headers={"origin": "http://evil.example"}).status_code == 403
    assert browser.post("/runs/stop", json={}, headers={"origin": "http://127.0.0.1:9999"}).status_code == 403
    assert browser.post("/runs/stop", content="{}", headers={"content-type": "text/plain"}).status_code == 415
    assert browser.get("/runs/stop").status_code == 405


ELSEWHERE = [
    "..",
    "../outside",
    "runs/../../outside",
    "/etc",
    "link",
    "link/run",
    ".hidden",
    "",
    "a\x00b",
    "a\nb",
    "x" * 3000,
    ".",
]


@pytest.mark.parametrize("name", ELSEWHERE)
def test_paths_outside_the_folder_are_refused(browser: TestClient, folder: Path, name: str):
    outside = folder.parent / "outside"
    (outside / "run").mkdir(parents=True)
    (outside / "secret.yaml").write_text("secret: 1", encoding="utf-8")
    (folder / "link").symlink_to(outside)
    for path in ("/runs/state", "/runs/curves", "/export/state"):
        assert browser.get(path, params={"run": name}).status_code in (400, 403, 404), path
    for path in ("/runs/stop", "/runs/continue"):
        assert browser.post(path, json={"run": name}).status_code in (400, 403, 404), path
    assert browser.post("/export/start", json={"run": name, "exporter": "safetensors"}).status_code in (400, 403, 404)
    assert browser.post("/recipe/save", json={"name": f"{name}/secret.yaml", "text": "model: tiny"}).status_code in (
        400,
        403,
    )
    assert browser.get("/recipe/", params={"file": f"{name}/secret.yaml"}).status_code in (400, 403, 404)
    assert (outside / "secret.yaml").read_text(encoding="utf-8") == "secret: 1"


@pytest.mark.parametrize("file", ["link.yaml", "run.json", "a.yaml.py", "-x.yaml", "a/b.yaml"])
def test_recipes_are_files_of_the_folder_itself(browser: TestClient, folder: Path, file: str):
    (folder.parent / "secret.yaml").write_text("secret: 1", encoding="utf-8")
    (folder / "link.yaml").symlink_to(folder.parent / "secret.yaml")
    assert browser.post("/recipe/save", json={"name": file, "text": "model: tiny"}).status_code in (400, 403, 404)
    assert "secret" not in browser.get("/recipe/", params={"file": file}).text
    assert (folder.parent / "secret.yaml").read_text(encoding="utf-8") == "secret: 1"


@pytest.mark.parametrize("body", ["[]", "{", "null", '{"run": 3}', "[" * 100_000, '{"run": null}'])
def test_a_body_that_is_none_is_an_error_of_the_request(browser: TestClient, body: str):
    assert browser.post("/runs/stop", content=body, headers={"content-type": "application/json"}).status_code == 400


def test_models_and_options_say_nothing_to_the_command_line(browser: TestClient, folder: Path):
    for name in (
        "--host=0.0.0.0",
        "-h",
        "/etc",
        "../x",
        "a=b",
        "one.yaml",
        "model.trust_remote_code=true",
        "",
        ".",
        3,
        "a\nb",
    ):
        assert browser.post("/chat/open", json={"model": name}).status_code in (400, 403, 404), name
    (folder / "runs").mkdir()
    for options in (
        {"--into": "/x"},
        {"trust_remote_code": "true"},
        {"model": "{trust_remote_code: true}"},
        {"type": "/etc/passwd"},
        ["a"],
    ):
        posted = {"run": "runs", "exporter": "safetensors", "options": options}
        assert browser.post("/export/start", json=posted).status_code in (400, 403, 404), options
    assert browser.post("/export/start", json={"run": "runs", "exporter": "no-such"}).status_code == 404
