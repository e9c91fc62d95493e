"""Rounds over Flower: what nodes send is merged by a merger, hostile bytes are refused, and a run on loopback is a real one."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file
from soup_models import adapter, tuned

from gym_core import BusyError, GymError
from gym_deltasoup import DifferentialPrivacy, Input, Median, UniformSoup, merge_artifacts
from gym_deltasoup.config.flower import FederatedRounds, load_rounds

pytestmark = pytest.mark.skipif(find_spec("flwr") is None, reason="the extra `flower` is not installed")

if find_spec("flwr"):
    from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict
    from flwr.app.metadata import Metadata

    from gym_deltasoup.flower.client import trained
    from gym_deltasoup.flower.records import arrays_of, write
    from gym_deltasoup.flower.strategy import MergerStrategy


def reply(node: int, arrays: ArrayRecord | None, **more) -> Message:
    """Return what a node sends."""
    about = Metadata(1, "", node, 0, "", "", 0.0, 3600.0, "train")
    if arrays is None:
        return Message(metadata=about, error=Error(1, "it broke"))
    return Message(metadata=about, content=RecordDict({"arrays": arrays, **more}))


def strategy(start: Path, tmp_path: Path, merger, **options) -> MergerStrategy:
    return MergerStrategy(FederatedRounds(start=str(start), output=str(tmp_path / "rounds"), merger=merger, **options))


def last(tmp_path: Path) -> dict:
    return json.loads((tmp_path / "rounds/rounds.jsonl").read_text().splitlines()[-1])


def as_tensors(arrays: ArrayRecord) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array.numpy().copy()) for name, array in arrays.items()}


def test_two_rounds_of_models_are_merges_of_what_was_sent_each_over_the_result_before(bench, tmp_path):
    base = bench.model()
    found = strategy(base, tmp_path, Median())
    rounds = []
    for number in (1, 2):
        models = [tuned(found.current, tmp_path / f"{number}-{seed}", seed) for seed in range(4)]
        for path in models:
            (path / "artifact.json").unlink(missing_ok=True)  # of the result that it was copied from
        sent = [reply(seed, arrays_of(path)) for seed, path in enumerate(models)]
        sent[0].content["metrics"] = MetricRecord({"num-examples": 10**9})  # what a node says of itself moves nothing
        before, (arrays, _) = found.current, found.aggregate_train(number, reversed(sent))
        direct = merge_artifacts(
            Median(),
            [Input(path, f"node-{seed}") for seed, path in enumerate(models)],
            tmp_path / f"direct-{number}",
            base=str(before),
            hostile=1,
        )
        wanted = load_file(direct.artifact.path / "model.safetensors")
        assert all(torch.equal(tensor, wanted[name]) for name, tensor in as_tensors(arrays).items())
        assert last(tmp_path) == {
            "round": number, "replies": 4, "refused": {}, "tolerated_byzantine": 1, "excluded": {}
        }  # fmt: skip
        rounds.append(found.current)
    assert rounds[0] != rounds[1] and all((path / "merge.json").is_file() for path in rounds)


def test_adapters_are_merged_as_products_and_sent_with_the_scaling_that_nodes_know(bench, tmp_path):
    base = bench.model()
    start = adapter(base, tmp_path / "start", 0)  # of scaling 0.5
    found = strategy(start, tmp_path, UniformSoup())
    trained = arrays_of(adapter(base, tmp_path / "one", 1))
    turn, flipped = torch.tensor([[0.0, 2.0], [-0.5, 0.0]]), {}
    for name, tensor in as_tensors(trained).items():  # the same product, of other factors
        flipped[name] = turn.inverse() @ tensor if "lora_A" in name else tensor @ turn
    other = ArrayRecord({name: Array(tensor.numpy()) for name, tensor in flipped.items()})
    arrays, _ = found.aggregate_train(1, [reply(1, trained), reply(2, other)])

    def product(record: ArrayRecord) -> torch.Tensor:
        halves = as_tensors(record)
        return next(v for k, v in halves.items() if "lora_B" in k) @ next(v for k, v in halves.items() if "lora_A" in k)

    assert torch.allclose(product(arrays), product(trained), atol=1e-7)
    assert set(arrays) == set(trained)


def test_a_node_goes_on_with_the_adapter_that_it_receives(bench, tmp_path):
    base = bench.model()
    start, sent = adapter(base, tmp_path / "start", 0), arrays_of(adapter(base, tmp_path / "sent", 1))
    recipe = bench.recipe("sft", max_steps=1, learning_rate=1e-4)
    recipe |= {
        "model": str(base),
        "adapter": {"name": "lora", "rank": 2, "alpha": 1},
        "output": str(tmp_path / "unused"),
    }
    (tmp_path / "node.yaml").write_text(yaml.safe_dump(recipe))
    with pytest.raises(GymError, match="has an unknown"):  # layers that are not in the start
        trained(sent, 1, start, tmp_path / "node.yaml")
    recipe["adapter"]["target_modules"] = ["layers.0.self_attn.q_proj"]
    (tmp_path / "node.yaml").write_text(yaml.safe_dump(recipe))
    back = as_tensors(trained(sent, 1, start, tmp_path / "node.yaml"))
    moved = {name: float((back[name] - tensor).abs().max()) for name, tensor in as_tensors(sent).items()}
    assert set(back) == set(moved) and all(0 < most < 1e-3 for most in moved.values()), moved


def test_a_folder_of_other_rounds_and_a_second_reply_of_a_node_change_nothing(bench, tmp_path):
    base = bench.model()
    found = strategy(base, tmp_path, Median(), hostile=1)
    models = [arrays_of(tuned(base, tmp_path / str(seed), seed)) for seed in range(5)]
    sent = [reply(node, arrays) for node, arrays in zip((1, 2, 3, 4, 4), models, strict=True)]
    found.aggregate_train(1, sent)
    assert last(tmp_path)["refused"] == {"node-4": "it replied more than once"}
    with pytest.raises(BusyError, match="there already"):
        strategy(base, tmp_path, Median())


def test_replies_of_another_form_are_left_out_by_robust_mergers_and_named(bench, tmp_path):
    base = bench.model()
    good = [arrays_of(tuned(base, tmp_path / str(seed), seed)) for seed in range(7)]
    name = next(iter(good[0]))
    array = good[0][name]

    def changed(**fields) -> ArrayRecord:
        told = {"dtype": array.dtype, "shape": array.shape, "stype": array.stype, "data": array.data} | fields
        return ArrayRecord({**good[0], name: Array(**told)})

    header = array.data[: array.data.index(b"\n") + 1]
    pickled = np.array([print], dtype=object)
    stream = tmp_path / "pickled.npy"
    np.save(stream, pickled, allow_pickle=True)
    hostile = {
        "lacks": ArrayRecord({key: value for key, value in good[0].items() if key != name}),
        "unknown": ArrayRecord({**good[0], "more": array}),
        "shape": changed(data=Array(np.zeros((2, 3), np.float32)).data),
        "format object": changed(data=stream.read_bytes().replace(b"(1,)", str(tuple(array.shape)).encode())),
        "format int64": changed(data=Array(np.zeros(array.shape, np.int64)).data),
        "format float128": changed(data=Array(np.zeros(array.shape, np.longdouble)).data),
        "bytes": changed(data=array.data[:-4]),
        "0 bytes": changed(data=header),
        "no array": changed(data=b"PK\x03\x04" + array.data),
        "no array of": changed(data=b""),
        "has the shape [99999999999999]": changed(
            data=header.replace(str(tuple(array.shape)).encode(), b"(99999999999999,)") + b"\0" * 64
        ),
        "error in place": None,
    }
    for number, (said, arrays) in enumerate(hostile.items()):
        found = strategy(base, tmp_path / f"case-{number}", Median(), hostile=1)
        sent = [reply(seed, each) for seed, each in enumerate(good)]
        found.aggregate_train(1, [*sent, reply(99, arrays)])
        told = last(tmp_path / f"case-{number}")
        assert said in told["refused"]["node-99"], (said, told)
        assert told["replies"] == 8 and told["tolerated_byzantine"] == 1
    found = strategy(base, tmp_path / "plain", UniformSoup())
    with pytest.raises(GymError, match=r"node-99: .*lacks.*no robust merger"):
        found.aggregate_train(1, [reply(1, good[1]), reply(99, hostile["lacks"])])
    broken = as_tensors(good[0])
    broken[name][0] = torch.nan
    found = strategy(base, tmp_path / "nan", Median())
    nan = ArrayRecord({key: Array(value.numpy()) for key, value in broken.items()})
    found.aggregate_train(1, [*(reply(seed, each) for seed, each in enumerate(good)), reply(99, nan)])
    assert last(tmp_path / "nan")["excluded"] == {"node-99": "NaN"}


def test_too_few_sound_replies_change_nothing(bench, tmp_path):
    base = bench.model()
    found = strategy(base, tmp_path, Median(), min_nodes=3)
    sent = [reply(seed, arrays_of(tuned(base, tmp_path / str(seed), seed))) for seed in range(2)]
    before = found.arrays
    assert found.aggregate_train(1, [*sent, reply(9, None)])[0] is None
    assert found.current == base and found.arrays is before and "tolerated_byzantine" not in last(tmp_path)
    with pytest.raises(GymError, match="other weights"):
        list(found.configure_train(2, arrays_of(tmp_path / "1"), None, None))
    with pytest.raises(GymError, match="differential_privacy promises something of one merge"):
        strategy(base, tmp_path, DifferentialPrivacy())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_come_back_as_they_were_sent(bench, tmp_path, dtype):
    from safetensors.torch import save_file

    path = shutil.copytree(bench.model(), tmp_path / "model")
    weights = {name: each.to(dtype) for name, each in load_file(path / "model.safetensors").items()}
    weights["counts"] = torch.arange(3)
    save_file(weights, path / "model.safetensors", {"format": "pt"})
    back = load_file(write(arrays_of(path), path, tmp_path / "back") / "model.safetensors")
    assert all(torch.equal(back[name], each) and back[name].dtype == each.dtype for name, each in weights.items())


def port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


NODES = 4


def test_a_run_on_loopback_trains_merges_and_leaves_out_a_liar(tmp_path):
    """A SuperLink, four SuperNodes, one of which trains with a huge rate, and two rounds of the tiny model."""
    from gym_core.execution import execute
    from gym_core.recipe import load_recipe

    recipe = {
        "model": "tiny",
        "data": {"sources": [{"name": "tiny-tasks", "count": 40}]},
        "algorithm": "sft",
        "train": {"max_steps": 2, "learning_rate": 1e-3, "batch_tokens": 1024},
        "output": str(tmp_path / "first"),
    }
    start = execute(load_recipe(recipe)).artifact.path
    rounds = {
        "start": str(start), "output": str(tmp_path / "rounds"), "merger": "byzantine_robust", "rounds": 2,
        "hostile": 1, "min_nodes": NODES, "timeout": 240,
    }  # fmt: skip
    (tmp_path / "rounds.yaml").write_text(yaml.safe_dump(rounds))
    app = tmp_path / "app"
    app.mkdir()
    text = (Path(__file__).parents[3] / "docs" / "flower.md").read_text(encoding="utf-8")
    page = text.split("```toml\n")[1].split("```")[0]
    (app / "pyproject.toml").write_text(page.replace("/srv/rounds.yaml", str(tmp_path / "rounds.yaml")))
    link, home = port(), tmp_path / "home"
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{link}"\ninsecure = true\n'
    )
    programs = Path(sys.executable).parent
    env = os.environ | {
        "FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0", "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"
    }  # fmt: skip
    started, logs = [], []

    def begin(*words: str) -> None:
        log = (tmp_path / f"log-{len(logs)}").open("w+")
        logs.append(log)
        started.append(subprocess.Popen(words, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True))

    try:
        begin("flower-superlink", "--insecure", "--port", str(link), "--disable-runtime-dependency-installation")
        for number in range(NODES):
            own = recipe | {"train": recipe["train"] | {"seed": 10 * number}}
            if number == 3:
                own["train"] = own["train"] | {"learning_rate": 1.0}
            (tmp_path / f"node-{number}.yaml").write_text(yaml.safe_dump(own))
            about = f'start="{start}" recipe="{tmp_path}/node-{number}.yaml"'
            begin(
                "flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{link}", "--port", str(port()),
                "--node-config", about,
            )  # fmt: skip
        deadline, said = time.monotonic() + 60, ""
        while time.monotonic() < deadline:  # until the server listens
            done = subprocess.run(["flwr", "run", str(app), "here"], env=env, capture_output=True, text=True)
            said = done.stdout + done.stderr
            if done.returncode == 0:
                break
            time.sleep(1)
        else:
            raise AssertionError(said)
        file, deadline = tmp_path / "rounds/rounds.jsonl", time.monotonic() + 300
        while time.monotonic() < deadline and not (file.exists() and len(file.read_text().splitlines()) == 2):
            time.sleep(1)
        written = "".join((tmp_path / f"log-{number}").read_text()[-3000:] for number in range(len(logs)))
        assert file.exists(), written
        lines = [json.loads(line) for line in file.read_text().splitlines()]
    finally:
        for process in started:
            os.killpg(process.pid, 15)
        for process in started:
            process.wait(30)
        for log in logs:
            log.close()
    assert [line["tolerated_byzantine"] for line in lines] == [1, 1], written
    before = load_file(start / "model.safetensors")
    for number in (1, 2):
        path = tmp_path / f"rounds/round-{number}"
        after = load_file(path / "model.safetensors")
        moved = torch.cat([(after[name] - before[name]).flatten() for name in before])
        assert 0 < moved.abs().max() < 0.1  # the liar's rate moves each weight by about 1
        assert len(json.loads((path / "merge.json").read_text())["cut"]) == 1
        before = after


def test_more_hostile_nodes_than_the_merger_tolerates_are_refused_before_anybody_trains(tmp_path):
    file = tmp_path / "rounds.yaml"
    file.write_text("start: first\noutput: rounds\nmerger: byzantine_robust\nhostile: 1\nmin_nodes: 2\n")
    with pytest.raises(GymError, match="needs at least 3 inputs to tolerate 1"):
        load_rounds(file)
