"""What vLLM says, said by the tiny model: for the tests of both engines, because vLLM needs a GPU.

`StandIn` samples as vLLM is documented to. `serve` puts it behind the routes of `vllm serve`, and as a command this file is
such a server. `LLM` and `SamplingParams` are the names that the engine in the training process imports.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from gym_data.tokenizer import Tokenizer
from gym_torch.generation.generator import Generator
from gym_torch.model.transformers_lock import TRANSFORMERS_LOCK


class StandIn:
    """A model that answers and takes weights; it knows nothing of the trainer."""

    def __init__(self, path: Path) -> None:
        with TRANSFORMERS_LOCK:  # threads of a server that is restarted make several at once
            self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        self.tokenizer = Tokenizer(path)
        self.generator = Generator(self.model, self.tokenizer)
        self.lock = threading.Lock()

    def load(self, weights: dict[str, torch.Tensor]) -> None:
        wrong = self.model.load_state_dict(weights, strict=False)
        assert not wrong.unexpected_keys and set(wrong.missing_keys) <= {"lm_head.weight"}, wrong

    def answer(self, prompt: list[int], params: dict[str, Any]) -> tuple[list[int], list[float]]:
        assert params["ignore_eos"] and params["logprobs"] == 0
        assert bool(params.get("stop")) is params.get("include_stop_str_in_output", False)
        assert params["repetition_penalty"] == 1.0 and params["skip_special_tokens"] is False
        with self.lock:
            (made,) = self.generator.generate(
                [prompt],
                params["max_tokens"],
                temperature=params["temperature"],
                top_p=params["top_p"],
                seed=params["seed"],
                stop_ids=params["stop_token_ids"],
                top_k=params["top_k"],
                min_p=params["min_p"],
                stop=params.get("stop", ()),
            )
        return made.tokens, made.log_probs

    @torch.no_grad()
    def prompt_logprobs(self, prompt: list[int]) -> list[float]:
        with self.lock:
            scores = self.model.eval()(torch.tensor([prompt])).logits[0, :-1].log_softmax(-1)
        return scores.gather(1, torch.tensor(prompt[1:])[:, None])[:, 0].tolist()


@dataclass
class Desk:
    """A server and its state: what it was asked, and how it misbehaves."""

    model: StandIn
    key: str = ""
    mode: str = "processed_logprobs"
    version: str | None = "default"
    routes: set[str] = field(default_factory=lambda: set(ROUTES))
    seen: list[tuple[str, Any]] = field(default_factory=list)
    bend: Callable[[str, Any], Any] = lambda path, reply: reply
    """Changes a reply; a number becomes the status, None breaks the connection."""
    url: str = ""

    def reply(self, path: str, content: Any) -> Any:
        path = path.partition("?")[0]
        self.seen.append((path, content))
        if path not in self.routes:
            return 404
        return self.bend(path, ROUTES[path](self, content))


def _complete(desk: Desk, content: dict[str, Any]) -> Any:
    assert content["model"] == "policy" and content["return_token_ids"] is True
    tokens, log_probs = desk.model.answer(content["prompt"], content)
    finished = tokens[-1] in content["stop_token_ids"]
    choice = {
        "index": 0,
        "text": desk.model.tokenizer.decode(tokens),
        "token_ids": tokens,
        "prompt_token_ids": content["prompt"],
        "logprobs": {"token_logprobs": log_probs, "tokens": [], "top_logprobs": [], "text_offset": []},
        "finish_reason": "stop" if finished else "length",
    }
    if content.get("prompt_logprobs") == 0:
        pairs = zip(content["prompt"][1:], desk.model.prompt_logprobs(content["prompt"]), strict=True)
        choice["prompt_logprobs"] = [None, *({str(token): {"logprob": value, "rank": 1}} for token, value in pairs)]
    return {"id": "cmpl", "object": "text_completion", "model": "policy", "choices": [choice], "usage": {}}


def _call(desk: Desk, content: dict[str, Any]) -> Any:
    assert content["method"] == "reload_weights"
    files = sorted(Path(content["kwargs"]["weights_path"]).glob("*.safetensors"))
    desk.model.load({name: value for file in files for name, value in load_file(file).items()})
    return {"results": [None]}


def _rename(desk: Desk, content: dict[str, Any]) -> Any:
    desk.version = content["new_version"]
    return {"success": True, "new_version": desk.version}


ROUTES: dict[str, Callable[[Desk, Any], Any]] = {
    "/health": lambda desk, content: "",
    "/v1/models": lambda desk, content: {"object": "list", "data": [{"id": "policy", "object": "model"}]},
    "/v1/completions": _complete,
    "/tokenize": lambda desk, content: {"tokens": desk.model.tokenizer.encode(content["prompt"])},
    "/server_info": lambda desk, content: {"vllm_config": {"model_config": {"logprobs_mode": desk.mode}}},
    "/collective_rpc": _call,
    "/reset_prefix_cache": lambda desk, content: {"success": True},
    "/update_weight_version": _rename,
    "/weight_info": lambda desk, content: {"weight_version": desk.version},
}


def handler(desk: Desk) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.say(desk.reply(self.path, None) if self.allowed() else 401)

        def do_POST(self) -> None:
            content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.say(desk.reply(self.path, content) if self.allowed() else 401)

        def allowed(self) -> bool:
            guarded = self.path.startswith("/v1")  # vLLM's key guards these routes alone
            return not (guarded and desk.key) or self.headers.get("Authorization") == f"Bearer {desk.key}"

        def say(self, reply: Any) -> None:
            if reply is None:
                self.close_connection = True
                return
            status = reply if isinstance(reply, int) else 200
            content = {"error": {"message": "it says no"}} if isinstance(reply, int) else reply
            body = content.encode() if isinstance(content, str) else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    return Handler


class Quiet(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news; a failed assertion is."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


@contextmanager
def serve(desk: Desk, port: int = 0) -> Iterator[Desk]:
    server = Quiet(("127.0.0.1", port), handler(desk))
    desk.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield desk
    finally:
        server.shutdown()
        server.server_close()


class SamplingParams:
    def __init__(self, **options: Any) -> None:
        self.options = options


class LLM:
    """vLLM's engine in this process: memory for weights and for keys comes and goes with `sleep` and `wake_up`."""

    def __init__(self, model: str, **options: Any) -> None:
        self.options, self.model = options, StandIn(Path(model))
        self.held, self.calls = {"weights", "kv_cache"}, []

    def sleep(self, level: int) -> None:
        assert level == 2 and self.options["enable_sleep_mode"]
        self.held = set()
        with torch.no_grad():
            for weight in self.model.model.parameters():
                weight.fill_(float("nan"))

    def wake_up(self, tags: list[str]) -> None:
        self.held |= set(tags)

    def collective_rpc(self, method: str, kwargs: dict[str, Any]) -> None:
        assert method == "reload_weights" and "weights" in self.held
        assert self.options["enable_sleep_mode"] is False or "kv_cache" not in self.held, (
            "both are held while weights load"
        )
        self.calls.append(method)
        self.model.load(dict(kwargs["weights_iterator"]))

    def reset_prefix_cache(self) -> None:
        self.calls.append("reset_prefix_cache")

    def generate(self, prompts: list[dict[str, Any]], params: list[SamplingParams], use_tqdm: bool) -> list[Any]:
        assert self.held == {"weights", "kv_cache"} and use_tqdm is False
        found = []
        for prompt, one in zip(prompts, params, strict=True):
            tokens, log_probs = self.model.answer(prompt["prompt_token_ids"], one.options)
            places = [{token: SimpleNamespace(logprob=value)} for token, value in zip(tokens, log_probs, strict=True)]
            answer = SimpleNamespace(outputs=[SimpleNamespace(token_ids=tuple(tokens), logprobs=places)])
            if one.options.get("prompt_logprobs") == 0:
                text = prompt["prompt_token_ids"]
                scores = zip(text[1:], self.model.prompt_logprobs(text), strict=True)
                answer.prompt_logprobs = [None, *({token: SimpleNamespace(logprob=value)} for token, value in scores)]
            found.append(answer)
        return found


def main(arguments: list[str]) -> None:
    """Be `vllm serve MODEL --host 127.0.0.1 --port N ...`."""
    command, model, *rest = arguments
    options = dict(zip(rest[::2], rest[1::2], strict=True))
    assert command == "serve" and os.environ["VLLM_SERVER_DEV_MODE"] == "1", arguments
    torch.set_num_threads(1)
    desk = Desk(StandIn(Path(model)), key=os.environ["VLLM_API_KEY"], mode=options["--logprobs-mode"])
    assert options["--host"] == "127.0.0.1"
    with serve(desk, int(options["--port"])):
        time.sleep(600)


if __name__ == "__main__":
    main(sys.argv[1:])
