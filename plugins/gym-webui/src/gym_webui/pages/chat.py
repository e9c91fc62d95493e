"""The panel of conversations: opening a model, and its replies as they come."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from gym_serve.api.errors import HTTPProblem
from gym_webui import Chat, run_files
from gym_webui.allowed_inputs import check_model
from gym_webui.models import Models, pieces
from gym_webui.pages.requests import Asked, asked, page, posted
from gym_webui.site import Page, Site

#: Options of a reply: what each is called, its bounds, and what it means.
SAMPLING = {
    "temperature": "0 takes the likeliest token each time",
    "top_p": "the smallest set of tokens with this much probability",
    "top_k": "this many of the likeliest tokens; 0 is all",
    "min_p": "tokens with this share of the likeliest one's probability",
    "repetition_penalty": "above 1, tokens that were written become less likely",
    "max_tokens": "most tokens of a reply",
    "seed": "the same seed gives the same reply",
}


def build(config: Chat, site: Site) -> Page:
    """Return the page; its models end with the server."""
    models = Models(site)

    def shown(request: Request) -> Response:
        known = [run["run"] for run in run_files.runs(site) if run["status"] != "starting"]
        chosen = request.query_params.get("model", "")
        return site.render(request, "gym_webui/chat.html", known=known, chosen=chosen, sampling=SAMPLING)

    def opened(body: Asked) -> Any:
        models.open(check_model(site, body.get("model")))
        return {"models": models.states()}

    def answered(body: Asked) -> Response:
        name, messages, said = check_model(site, body.get("model")), body.get("messages"), body.get("sampling", {})
        if not isinstance(messages, list) or not isinstance(said, dict) or said.keys() - SAMPLING.keys():
            raise HTTPProblem(400, f"expected messages, and options of: {', '.join(SAMPLING)}", code="wrong_form")
        return StreamingResponse(
            pieces(models.ask(name, {"messages": messages, **said})), media_type="text/event-stream"
        )

    def closed(body: Asked) -> Any:
        models.close(check_model(site, body.get("model")))
        return {"models": models.states()}

    routes = (
        page("/", shown),
        asked("/state", lambda words: {"models": models.states()}),
        posted("/open", opened),
        posted("/ask", answered),
        posted("/close", closed),
    )
    return Page(routes, models.close)
