"""The server's contract, against a server that speaks as vLLM does: what is asked, what is believed, and what stops the run."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch
from gym_vllm_standin import ROUTES, Desk, StandIn
from transformers import AutoModelForCausalLM

from gym_adapters import LoRA
from gym_core import GymError, execute, load_recipe
from gym_core.ranks import Ranks
from gym_data.tokenizer import Tokenizer
from gym_rl.rollout_engine import RolloutRequest
from gym_testkit.distribution import Brought
from gym_testkit.laws import rollouts as laws
from gym_testkit.team import start
from gym_testkit.tiny import write_model
from gym_torch.model.adapted import Full
from gym_vllm import VLLM
from gym_vllm.client import Client
from gym_vllm.server import ServerEngine

PROMPTS = [[5, 9, 17], [30], [5, 9, 17]]


class Case:
    """A trainer's side: a model of its own, and the engine that the options give."""

    def __init__(self, path: Path, output: Path, **options) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        self.config = VLLM(**{"retries": 0, "timeout": 20.0, **options})
        self.adapted, self.tokenizer, self.path, self.output = Full(None, self.model), Tokenizer(path), path, output

    def engine(self) -> ServerEngine:
        return self.config.build(
            adapted=self.adapted,
            tokenizer=self.tokenizer,
            path=self.path,
            precision="fp32",
            output=self.output,
            ranks=Ranks(),
        )

    def move(self, amount: float = 0.05) -> None:
        torch.manual_seed(0)
        with torch.no_grad():
            for weight in self.model.parameters():
                weight.add_(torch.randn_like(weight), alpha=amount)


@pytest.fixture
def case(model_path, desk, tmp_path) -> Case:
    return Case(model_path, tmp_path, url=desk.url)


def breaks(desk: Desk, path: str, reply) -> None:
    """Have the server reply so on one route."""
    desk.bend = lambda asked, usual: (reply(usual) if callable(reply) else reply) if asked == path else usual


def choice(**changes):
    def bend(reply):
        reply["choices"][0].update(changes)
        return reply

    return bend


LAWS = [law.check for law in laws.laws.laws]


@pytest.mark.parametrize("law", LAWS, ids=[law.__name__ for law in LAWS])
def test_it_holds_to_the_laws_of_engines(bench, desk, law) -> None:
    class There(VLLM):
        url: str = desk.url

    law(Brought("rollouts", "vllm", There), bench)


def test_log_probabilities_arrive_as_they_were_sampled(case, desk) -> None:
    engine = case.engine()
    case.move()
    engine.refresh()
    made = engine.generate(RolloutRequest(PROMPTS, 8, 0.7, 1.0, seed=3))
    for prompt, answer in zip(PROMPTS, made, strict=True):
        logits = case.model(torch.tensor([[*prompt, *answer.tokens[:-1]]])).logits[0, len(prompt) - 1 :] / 0.7
        own = logits.log_softmax(-1).gather(1, torch.tensor(answer.tokens)[:, None])[:, 0]
        assert torch.allclose(own, torch.tensor(answer.log_probs), atol=1e-4)


def test_an_adapter_arrives_merged(case, desk) -> None:
    case.adapted = LoRA(rank=4).build(model=case.model, seed=0)
    engine = case.engine()
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in case.adapted.model.parameters():
            if weight.requires_grad:
                weight.add_(torch.randn_like(weight), alpha=0.2)
    engine.refresh()
    (answer,) = engine.generate(RolloutRequest([[5, 9]], 8, 1.0))
    for model, same in ((case.adapted.merged(), True), (AutoModelForCausalLM.from_pretrained(case.path), False)):
        logits = model.eval()(torch.tensor([[5, 9, *answer.tokens[:-1]]])).logits[0, 1:]
        own = logits.log_softmax(-1).gather(1, torch.tensor(answer.tokens)[:, None])[:, 0]
        assert torch.allclose(own, torch.tensor(answer.log_probs), atol=1e-4) is same


def test_what_a_killed_run_left_on_its_way_is_removed(case, desk) -> None:
    engine = case.engine()
    engine.folder.mkdir()
    (engine.folder / "model-00009-of-00009.safetensors").write_text("half of it")
    again = case.engine()
    again.refresh()
    assert again.folder == engine.folder and list(case.output.iterdir()) == []


def test_a_folder_for_weights_that_cannot_be_written(model_path, desk, tmp_path) -> None:
    (tmp_path / "file").write_text("")
    engine = Case(model_path, tmp_path, url=desk.url, weights=str(tmp_path / "file")).engine()
    with pytest.raises(GymError, match="cannot be written"):
        engine.refresh()


def test_a_round_gives_the_weights_a_name_and_forgets_cached_prompts(case, desk) -> None:
    engine = case.engine()
    desk.seen.clear()
    engine.refresh()
    engine.generate(RolloutRequest([[5]], 2, 1.0))
    paths = [path for path, _ in desk.seen]
    assert paths == [
        "/collective_rpc",
        "/reset_prefix_cache",
        "/v1/completions",  # what it makes of a known text
        "/update_weight_version",
        "/v1/completions",
        "/weight_info",
        "/v1/completions",
    ]
    assert desk.version == engine.version
    assert list(case.output.iterdir()) == [], "weights are left on the disk"
    before = desk.version
    engine.refresh()
    assert desk.version != before


def test_every_answer_has_a_seed_of_its_own_and_every_setting_is_said(case, desk) -> None:
    case.engine().generate(RolloutRequest([[5]] * 3, 4, 0.9, 0.8, seed=1, streams=[7, 8, 9]))
    asked = [content for path, content in desk.seen if path == "/v1/completions"]
    assert len({content["seed"] for content in asked}) == 3
    for content in asked:
        assert (content["temperature"], content["top_p"], content["max_tokens"]) == (0.9, 0.8, 4)
        assert content["top_k"] == 0 and content["min_p"] == 0 and content["repetition_penalty"] == 1
    case.engine().generate(RolloutRequest([[5]], 4, 0.9, top_k=7, min_p=0.25))
    assert (desk.seen[-1][1]["top_k"], desk.seen[-1][1]["min_p"]) == (7, 0.25)


def test_a_restarted_server_is_noticed(case, desk, model_path) -> None:
    engine = case.engine()
    case.move()
    engine.refresh()
    engine.generate(RolloutRequest(PROMPTS, 4, 1.0))
    desk.model, desk.version = StandIn(model_path), "default"  # as it was started
    with pytest.raises(GymError, match="no longer has the weights that it was given"):
        engine.generate(RolloutRequest(PROMPTS, 4, 1.0))
    engine.refresh()
    engine.generate(RolloutRequest(PROMPTS, 4, 1.0))


def test_a_server_that_says_the_right_name_and_has_other_weights_is_noticed(case, desk, model_path) -> None:
    """A name is what the client said; what the server computes is its own."""
    engine = case.engine()
    case.move()
    engine.refresh()
    desk.model = StandIn(model_path)  # as it was started, under the name that it was given later
    with pytest.raises(GymError, match="no longer has the weights that it was given"):
        engine.generate(RolloutRequest(PROMPTS, 4, 1.0))


def test_a_server_that_does_not_take_the_weights_is_noticed_before_it_answers(case, desk) -> None:
    engine = case.engine()
    engine.refresh()
    case.move(0.3)
    desk.model.load = lambda weights: None
    with pytest.raises(GymError, match="computes with other weights than it was just given") as raised:
        engine.refresh()
    assert len(str(raised.value).splitlines()) <= 4


@pytest.mark.parametrize("said", [None, [None], [None, {"5": {"logprob": -1.0}}]])
def test_a_server_that_cannot_say_what_it_computes_is_refused(case, desk, said) -> None:
    engine = case.engine()
    breaks(desk, "/v1/completions", choice(prompt_logprobs=said))
    with pytest.raises(GymError, match="does not say how likely the tokens of a prompt are"):
        engine.refresh()


def test_a_broken_connection_is_tried_again(model_path, desk, tmp_path) -> None:
    engine = Case(model_path, tmp_path, url=desk.url, retries=2).engine()
    engine.client = Client(desk.url, retries=2, backoff=0.01)
    replies = [None, 503]
    desk.bend = lambda path, usual: replies.pop() if path == "/v1/completions" and replies else usual
    assert len(engine.generate(RolloutRequest([[5]], 4, 1.0))) == 1
    assert not replies


NAN = float("nan")


@pytest.mark.parametrize(
    ("path", "reply", "why"),
    [
        ("/v1/completions", 500, "status 500, it says no"),
        ("/v1/completions", None, "does not answer /v1/completions"),
        ("/v1/completions", 503, "status 503"),
        ("/v1/completions", "no json", "replied with no JSON"),
        ("/v1/completions", {"choices": []}, "without tokens"),
        ("/v1/completions", {"error": "?"}, "without `choices`"),
        ("/v1/completions", choice(token_ids=None), "without tokens"),
        ("/v1/completions", choice(logprobs=None), "without tokens"),
        ("/v1/completions", choice(token_ids=["a"]), "without tokens"),
        ("/v1/completions", choice(token_ids=[999]), "token 999"),
        ("/v1/completions", choice(token_ids=[5]), "ended an answer after 1 of 8"),
        ("/v1/completions", choice(prompt_token_ids=[1]), "read other tokens"),
        ("/collective_rpc", 500, "status 500"),
        ("/reset_prefix_cache", {"success": False}, "keeps prompts"),
        ("/update_weight_version", 404, "VLLM_SERVER_DEV_MODE"),
        ("/weight_info", {"weight_version": "another"}, "no longer has the weights"),
    ],
)
def test_what_a_server_does_wrong_stops_the_run_in_four_lines(case, desk, path, reply, why) -> None:
    engine = case.engine()
    with pytest.raises(GymError) as caught:
        if path == "/v1/completions":
            engine.refresh()
        breaks(desk, path, reply)
        if path != "/v1/completions":
            engine.refresh()
        engine.generate(RolloutRequest(PROMPTS, 8, 1.0))
    assert why in str(caught.value)
    assert len(str(caught.value).splitlines()) <= 4
    assert list(case.output.iterdir()) == []


def test_an_answer_that_goes_on_behind_its_end_is_none(case, desk) -> None:
    """A server that does not know `stop_token_ids` writes on, and what it writes is no part of the answer."""
    engine = case.engine()
    tokens = [5, min(engine.stop), *range(5, 11)]
    breaks(desk, "/v1/completions", choice(token_ids=tokens, logprobs={"token_logprobs": [-1.0] * len(tokens)}))
    with pytest.raises(GymError, match="went on behind token"):
        engine.generate(RolloutRequest([[5]], 8, 1.0))


def test_a_log_probability_that_is_no_number_is_none(case, desk) -> None:
    from gym_rl.rollouts.engine_output_check import check

    engine = case.engine()

    def bend(reply):
        reply["choices"][0]["logprobs"]["token_logprobs"][0] = NAN
        return reply

    breaks(desk, "/v1/completions", bend)
    with pytest.raises(GymError, match="returned nan as the log-probability"):
        check(engine.generate(RolloutRequest([[5]], 4, 1.0)), ["row 1"], 4)


def test_a_slow_server_is_not_waited_for_forever(model_path, desk, tmp_path) -> None:
    engine = Case(model_path, tmp_path, url=desk.url, timeout=0.3).engine()

    def late(path, usual):
        time.sleep(1.0 if path == "/v1/completions" else 0.0)
        return usual

    desk.bend = late
    began = time.monotonic()
    with pytest.raises(GymError, match="timed out"):
        engine.generate(RolloutRequest([[5]], 4, 1.0))
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda desk: setattr(desk, "mode", "raw_logprobs"), "reports raw_logprobs"),
        (lambda desk: desk.routes.discard("/server_info"), "VLLM_SERVER_DEV_MODE"),
        (lambda desk: desk.routes.discard("/weight_info"), "cannot say which weights"),
        (lambda desk: setattr(desk, "key", "secret"), "token: VLLM_API_KEY"),
        (lambda desk: breaks(desk, "/v1/models", {"data": []}), "without `0`"),
        (lambda desk: breaks(desk, "/tokenize", {"tokens": [1, 2]}), "another tokenizer"),
    ],
)
def test_a_server_that_training_cannot_use_is_refused_at_the_start(case, desk, change, why) -> None:
    change(desk)
    with pytest.raises(GymError) as caught:
        case.engine()
    assert why in str(caught.value)
    assert len(str(caught.value).splitlines()) <= 4


def test_another_tokenizer_is_refused(desk, tmp_path) -> None:
    path = write_model(tmp_path / "model")
    file = path / "tokenizer.json"
    file.write_text(file.read_text().replace('"A": 65', '"A": 66').replace('"B": 66', '"B": 65'))
    with pytest.raises(GymError, match="another tokenizer"):
        Case(path, tmp_path, url=desk.url).engine()


def test_no_server(model_path, tmp_path) -> None:
    with pytest.raises(GymError) as caught:
        Case(model_path, tmp_path, url="http://127.0.0.1:9").engine()
    assert "http://127.0.0.1:9" in str(caught.value) and "see that it runs" in str(caught.value)
    with pytest.raises(GymError, match="is no address"):
        Case(model_path, tmp_path, url="localhost:8000").engine()


def test_a_key_comes_from_the_environment(model_path, desk, tmp_path, monkeypatch) -> None:
    desk.key = "secret"
    monkeypatch.setenv("SERVER_KEY", "secret")
    assert Case(model_path, tmp_path, url=desk.url, token="SERVER_KEY").engine().generate(RolloutRequest([[5]], 2, 1.0))
    with pytest.raises(GymError, match="OTHER_KEY is not set"):
        Case(model_path, tmp_path, url=desk.url, token="OTHER_KEY").engine()


def test_a_server_that_cannot_say_its_weights_is_used_on_request(model_path, desk, tmp_path) -> None:
    desk.routes = set(ROUTES) - {"/weight_info", "/update_weight_version"}
    engine = Case(model_path, tmp_path, url=desk.url, verify=False).engine()
    engine.refresh()
    assert engine.generate(RolloutRequest([[5]], 2, 1.0))


@pytest.fixture
def recipe(bench, desk):
    """Return a recipe that learns from the server."""
    rewards = [{"name": "regex", "pattern": "[a-m]"}]
    rollouts = {"name": "vllm", "url": desk.url, "retries": 0, "concurrency": 8}
    algorithm = {"name": "rloo", "rewards": rewards, "max_new_tokens": 8, "group_size": 4, "rollouts": rollouts}
    return bench.recipe(algorithm, "prompt")


def test_a_run_learns_from_a_server_and_is_the_same_again(bench, desk, recipe) -> None:
    whole = bench.run(recipe, max_steps=3)
    updates = [content for path, content in desk.seen if path == "/collective_rpc"]
    assert len(updates) == len(whole.series("reward")) == 3
    again = bench.run(recipe, name="again", max_steps=3)
    assert again.series("loss") == whole.series("loss"), "the same recipe gives other answers"
    # On the policy that answered: the server sampled from the weights that the trainer has.
    assert max(abs(value) for value in whole.series("approx_kl")) < 1e-5


def test_a_server_that_is_restarted_stops_the_run_which_then_goes_on(bench, desk, recipe, model_path) -> None:
    whole = bench.run(recipe, name="whole", max_steps=4, save_every=1)
    assert max(whole.series("reward_std")) > 0, "nothing is learnt here"
    rounds = 0

    def restarted(path, usual):
        nonlocal rounds
        rounds += path == "/collective_rpc"
        if path == "/v1/completions" and rounds == 3 and desk.version != "default":
            desk.model, desk.version = StandIn(model_path), "default"  # the answers under way are of old weights
        return usual

    desk.bend = restarted
    settings = {
        **recipe,
        "train": {**recipe["train"], "max_steps": 4, "save_every": 1},
        "output": str(bench.path("run")),
    }
    with pytest.raises(GymError, match="it was restarted"):
        execute(load_recipe(settings))
    desk.bend = lambda path, usual: usual
    again = bench.finished(execute(load_recipe(settings)))
    assert again.series("loss") == whole.series("loss")
    assert again.series("reward") == whole.series("reward")


def _drawn(desk) -> list[int]:
    """Return the seeds of all answers that were asked for, but for what asks which weights there are."""
    asked = (content for path, content in desk.seen if path == "/v1/completions")
    return [content["seed"] for content in asked if "prompt_logprobs" not in content]


def test_two_processes_ask_for_their_shares_and_one_sends_the_weights(bench, desk, recipe) -> None:
    desk.seen.clear()
    alone = bench.run(recipe, max_steps=2)
    asked = _drawn(desk)
    desk.seen.clear()
    file, output = bench.path("recipe.yaml"), bench.path("both")
    file.write_text(json.dumps({**recipe, "train": {**recipe["train"], "max_steps": 2}, "output": str(output)}))
    team = start(2, str(file))
    assert team.codes(within=240) == [0, 0], team.errors()
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    assert [line["reward"] for line in lines] == alone.series("reward")
    assert [line["loss"] for line in lines] == pytest.approx(alone.series("loss"), abs=1e-5)
    assert sorted(_drawn(desk)) == sorted(asked)
    assert [path for path, _ in desk.seen].count("/collective_rpc") == 2
