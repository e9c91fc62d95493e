"""Laws of panels: a page opens behind the token, keeps to the policy of its server, and imports no tensor library."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from typing import cast

from starlette.testclient import TestClient

from gym_serve.api.options import ApiOptions
from gym_testkit.bench import Bench
from gym_testkit.distribution import Brought
from gym_testkit.law import laws_of
from gym_webui.access import HEADERS, Access
from gym_webui.kinds import Panel
from gym_webui.serving import application
from gym_webui.site import Site

laws = laws_of("panels", "panel")

TOKEN = "a-token-of-the-tests"  # noqa: S105 - opens nothing
HERE = "http://127.0.0.1"
_BUILD = """
import sys
from pathlib import Path
from gym_core.component import construct
from gym_webui.site import Site
construct(sys.argv[1]).build(site=Site(Path.cwd().resolve()))
print(*sys.modules)
"""


@laws("its page opens with the token, and with nothing else")
def opens(brought: Brought, bench: Bench) -> None:
    """Without the token every path below its name is 401; with it the page is HTML that allows no code from elsewhere."""
    panel = cast("Panel", brought.sample())
    with ExitStack() as ending:
        site = Site(bench.root.resolve())
        app = application(site, [(brought.name, panel)], ending)
        client = TestClient(Access(app, ApiOptions(), TOKEN, 1), base_url=HERE, follow_redirects=False)
        path = f"/{brought.name}/"
        assert client.get(path).status_code == 401, "it answers a request without the token"
        page = client.get(path, headers={"authorization": f"Bearer {TOKEN}"})
        assert page.status_code == 200 and page.headers["content-type"].startswith("text/html"), page.text[:500]
        assert all(page.headers[name] == value for name, value in HEADERS.items()), "it weakens the headers"
        assert panel.title in page.text and "<script>" not in page.text, "code stands in the page itself"


@laws("building it imports no tensor library")
def light(brought: Brought, bench: Bench) -> None:
    """The server lives long and beside runs that need the memory."""
    cls = brought.cls
    done = subprocess.run(
        [sys.executable, "-c", _BUILD, f"{cls.__module__}:{cls.__qualname__}"],
        cwd=bench.root,
        capture_output=True,
        check=False,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    heavy = {"torch", "numpy", "transformers"} & set(done.stdout.split())
    assert not heavy, f"imports {', '.join(sorted(heavy))}"
