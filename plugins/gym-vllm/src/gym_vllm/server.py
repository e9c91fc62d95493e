"""The engine that asks a vLLM server: over HTTP, tokens in and out, with weights that the server loads from a folder.

A round is: write the weights, have them loaded, forget cached prompts, see that the server computes with them, name them; ask for
all answers at once, each with a seed of its own; see that the server still computes the same, under the same name. One that was
restarted on the way has other weights, and the run stops.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from gym_core import GymError
from gym_core.files import by_umask
from gym_core.ranks import Ranks
from gym_data.tokenizer import Tokenizer
from gym_rl.rollout_engine import RolloutRequest
from gym_torch.generation.generator import stop_ids
from gym_torch.generation.row import Completion
from gym_torch.model.adapted import AdaptedModel
from gym_torch.model.rope_scaling import refuse_files
from gym_vllm.client import Client, Refused
from gym_vllm.launch import Server
from gym_vllm.probe import ARITHMETIC, REPEATED, TEXT, Probe, apart
from gym_vllm.request import LOGPROBS, SamplingOptions, refuse_routing

if TYPE_CHECKING:
    from gym_vllm import VLLM


class ServerEngine:
    """Answers with a server, one that runs already or one of its own on this machine."""

    exact = False

    def __init__(
        self,
        config: VLLM,
        *,
        adapted: AdaptedModel,
        tokenizer: Tokenizer,
        path: Path,
        output: Path,
        ranks: Ranks,
        routers: object = None,
        **_: object,
    ) -> None:
        """Reach or start the server. Raises GymError unless it serves this model, with its tokens, as training needs it."""
        refuse_routing(routers)
        refuse_files(adapted.model, path)
        self.config, self.adapted, self.ranks = config, adapted, ranks
        self.stop, self.decode = stop_ids(adapted.model, tokenizer), tokenizer.decode
        self.vocabulary = int(adapted.model.config.get_text_config().vocab_size)
        run = hashlib.blake2b(str(output.resolve()).encode(), digest_size=8).hexdigest()
        # what a killed run left there, its next one removes
        self.folder = Path(config.weights or output) / f"rollouts-{run}"
        self.server = Server(config, path, output / "vllm.log")
        url, token = ranks.agree(self.server.start) if not config.url else (config.url, _secret(config.token))
        self.client = Client(url, token, config.timeout, config.retries)
        self.version = ""
        self.probe, self.computed = (
            Probe(tokenizer),
            list[float](),
        )  #: what the server made of a text when it got the weights
        try:
            self.model = self._checked(tokenizer)
        except GymError:
            self.close()
            raise

    def refresh(self) -> None:
        """Have the server load the weights as they are now."""
        self.version, self.computed = json.loads(self.ranks.agree(self._send))

    def generate(self, request: RolloutRequest) -> list[Completion]:
        """Return the completions. Raises GymError when the server fails, or no longer has the weights that it was given."""
        options = SamplingOptions(request, sorted(self.stop), self.decode)
        each = zip(request.prompts, request.streams, request.limits, strict=True)
        with ThreadPoolExecutor(self.config.concurrency) as pool:
            made = list(pool.map(lambda one: self._answer(options, *one), each))
        self._verify()
        return made

    def close(self) -> None:
        """End the server, if it was started here, and remove weights that were on their way."""
        self.server.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _answer(self, options: SamplingOptions, prompt: Sequence[int], stream: int, limit: int) -> Completion:
        content = {
            "model": self.model,
            "prompt": list(prompt),
            "return_token_ids": True,
            "add_special_tokens": False,
            **options.params(stream, limit),
        }
        choices = self.client.post("/v1/completions", content, "choices")
        try:
            (choice,) = choices
            tokens, log_probs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
            read = choice.get("prompt_token_ids", prompt)
            plain = all(type(token) is int for token in tokens) and all(
                type(each) in (int, float) for each in log_probs
            )
        except (TypeError, KeyError, ValueError):
            plain = False
        if not plain:
            raise _refused(
                "replied without tokens and their log-probabilities", "take a vLLM that knows return_token_ids"
            )
        if list(read) != list(prompt):
            raise _refused("read other tokens than it was sent", "let it serve the model of the recipe")
        return options.completion(tokens, log_probs, limit, self.vocabulary)

    def _send(self) -> str:
        """Write the weights as a checkpoint of the model, and return, as JSON, the name that the server then has for them and
        what it makes of a text.
        """
        version, computed = uuid.uuid4().hex, list[float]()
        merged = self.adapted.merged()
        shutil.rmtree(self.folder, ignore_errors=True)
        try:
            self.folder.mkdir(parents=True)
            merged.save_pretrained(self.folder)
            by_umask(self.folder)  # the server may run as somebody else
            self.client.post(
                "/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(self.folder)}}
            )
        except OSError as error:
            raise GymError(
                f"the weights for the server cannot be written: {error.strerror or error}",
                where=str(self.folder),
                key="algorithm.rollouts.weights",
                fix="name a folder with room for the model",
            ) from error
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)
        forgot = self.client.post("/reset_prefix_cache", {})
        if isinstance(forgot, dict) and forgot.get("success") is False:
            raise _refused("keeps prompts that older weights computed", "let nobody else use it while it answers a run")
        if self.config.verify:
            computed = self._computed()
            found = apart(computed, self.probe.of(merged))
            if not found <= ARITHMETIC:
                raise _refused(
                    f"computes with other weights than it was just given: {found:.2g} nats a token apart on a known text",
                    "see what it logs on /collective_rpc, and that it serves the model of the recipe; a newer vLLM may help",
                )
            self.client.post("/update_weight_version", {"new_version": version})
        return json.dumps([version, computed])

    def _computed(self) -> list[float]:
        """Return what the server makes of a text with the weights that it has."""
        content = {
            "model": self.model,
            "prompt": self.probe.tokens,
            "return_token_ids": True,
            "add_special_tokens": False,
            "prompt_logprobs": 0,
            **SamplingOptions(RolloutRequest([], 1, 1.0), sorted(self.stop), self.decode).params(0, 1),
        }
        return self.probe.read(
            self.client.post("/v1/completions", content, "choices", 0, "prompt_logprobs"), str, "logprob"
        )

    def _verify(self) -> None:
        """Raise GymError when the server has other weights than it was given last: by their name, or by what it computes."""
        if self.version and self.config.verify:
            named = self.client.get("/weight_info", "weight_version") == self.version
            if not named or not apart(self._computed(), self.computed) <= REPEATED:
                raise _refused(
                    "no longer has the weights that it was given: it was restarted, or serves another run too",
                    "let it serve one run, and run the recipe again: it goes on from its last checkpoint",
                )

    def _checked(self, tokenizer: Tokenizer) -> str:
        """Return the name of the served model. Raises GymError unless the server does as training needs it."""
        name = str(self.client.get("/v1/models", "data", 0, "id"))
        mode = self.client.get("/server_info?config_format=json", "vllm_config", "model_config", "logprobs_mode")
        if mode != LOGPROBS:
            raise _refused(
                f"reports {mode}, not the probabilities it samples with",
                f"start it with --logprobs-mode {LOGPROBS}",
            )
        probe = {"model": name, "prompt": TEXT, "add_special_tokens": False}
        if self.client.post("/tokenize", probe, "tokens") != self.probe.tokens:
            raise _refused(
                "has another tokenizer than the model that is trained", "let it serve the model of the recipe"
            )
        if self.config.verify:
            try:
                self.client.get("/weight_info")
            except Refused as error:
                if error.status != 404:
                    raise
                raise _refused(
                    "cannot say which weights it has",
                    "take a vLLM that has /weight_info; or set `verify: false`, and never restart it during a run",
                ) from error
        return name


def _secret(variable: str) -> str:
    """Return the value of an environment variable, nothing for no name."""
    if variable and not os.environ.get(variable):
        raise GymError(
            f"the environment variable {variable} is not set",
            key="algorithm.rollouts.token",
            fix=f"export {variable}, or leave `token` out",
        )
    return os.environ[variable] if variable else ""


def _refused(why: str, fix: str) -> GymError:
    return GymError(f"the vLLM server {why}", key="algorithm.rollouts", fix=fix)
