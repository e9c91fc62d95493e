"""What words of a command line mean, files included: the options of the three commands."""

from __future__ import annotations

import re
from pathlib import Path

import click.testing
import pytest
from pydantic import ValidationError

from gym_core import GymError, RecipeError
from gym_serve.answer_options import AnswerOptions
from gym_serve.api.command import ApiServing
from gym_serve.api.fields import SamplingBody
from gym_serve.api.options import ApiOptions
from gym_serve.options import ServingCommand, read
from gym_serve.templates import named_template


def test_models_are_asked_for_by_the_last_part_of_their_path():
    found = read(
        ApiServing, ["runs/demo", "runs/a/checkpoints/step-00000200", "mine=../x/model", "Org/Name", "top_k=3"], {}
    )
    assert [source.name for source in found.sources()] == ["demo", "a-step-00000200", "mine", "Name"]
    assert [source.path for source in found.sources()][2] == "../x/model" and found.top_k == 3


def test_adapters_are_of_the_first_model():
    found = read(ApiServing, ["a", "b", "adapters.bob=runs/bob", "max_batch=3"], {"port": 1})
    first, second = found.sources()
    assert dict(first.adapters) == {"bob": "runs/bob"} and not second.adapters
    assert found.limits().max_batch == 3 and found.port == 1


@pytest.mark.parametrize("options", [ApiServing, AnswerOptions])
def test_help_lists_every_option_with_a_default_that_can_be_typed(options):
    told = (
        click.testing.CliRunner().invoke(ServingCommand("ask", options=options), ["--help"], terminal_width=80).output
    )
    listed = dict(re.findall(r"^  (\w+)=?(\S*)", told.partition("KEY=VALUE:\n")[2], re.MULTILINE))
    assert listed.keys() == options.model_fields.keys() - {"models"} and max(map(len, told.splitlines())) <= 80
    typed = [f"{name}={value}" for name, value in listed.items() if value]
    assert len(typed) > 5 and read(options, ["a", *typed], {}) == read(options, ["a"], {})


def test_a_model_is_given_a_name_whatever_it_is_called():
    """A family or a folder here has no sign of a path; what is like an option is one that was misspelt."""
    assert [each.name for each in read(ApiServing, ["other=tiny", "a=runs/a"], {}).sources()] == ["other", "a"]
    with pytest.raises(
        RecipeError, match=r"did you mean `max_batch`\? A model is named so by its path: `max_bach=./tiny`"
    ):
        read(ApiServing, ["a", "max_bach=tiny"], {})


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["a", "prot=1"], "did you mean `port`"),
        (["port=1"], "no model is named"),
        (["a", "x/a"], "two models have the name `a`"),
        (["a", "adapters.../x=b"], "adapters"),
        (["a", "port=99999"], "port"),
        (["a", "prefix_cache_bytes=lots"], "prefix_cache_bytes"),
        (["a", "repetition_penalty=1e-300"], "repetition_penalty"),
    ],
)
def test_what_cannot_be_is_named(words, why):
    with pytest.raises(GymError, match=why):
        read(ApiServing, words, {}).sources()


def test_models_of_two_engines_are_served_apart(tmp_path):
    (tmp_path / "small.gguf").touch()
    (tmp_path / "run").mkdir()
    found = read(ApiServing, [str(tmp_path / "run"), str(tmp_path / "small.gguf")], {})
    with pytest.raises(
        GymError, match=r"`run` is read by the engine `local`, and `small` is read by the engine `llama_cpp`"
    ):
        found.build()


@pytest.mark.parametrize(("model", "engine", "option"), [("run", "local", "threads"), ("x.gguf", "llama_cpp", "slots")])
def test_options_of_an_engine_are_those_of_the_one_that_reads_the_model(model, engine, option):
    found = read(ApiServing, [model, f"engine.{option}=3"], {})
    assert found == read(ApiServing, [model, f"engine={engine}", f"engine.{option}=3"], {})


def test_as_many_may_wait_as_the_queue_takes():
    assert read(ApiServing, ["a"], {}).bounded().max_concurrent == 64 + 256
    assert read(ApiServing, ["a", "max_batch=128", "queue=0"], {}).bounded().max_concurrent == 128
    assert read(ApiServing, ["a", "max_concurrent=3"], {}).bounded().max_concurrent == 3


def test_a_penalty_that_no_logit_can_be_divided_by_is_refused():
    with pytest.raises(GymError, match="repetition_penalty"):
        read(AnswerOptions, ["a", "repetition_penalty=1e-300"], {})
    with pytest.raises(ValidationError, match="repetition_penalty"):
        SamplingBody(model="a", repetition_penalty=1e-300)
    assert SamplingBody(model="a", repetition_penalty=0.1).repetition_penalty == 0.1


def test_the_section_of_a_file(tmp_path):
    text = "model: runs/demo\nserving:\n  batch_size: 32\n  max_concurrent: 100\n  cache_size: 10GB\n"
    (tmp_path / "s.yaml").write_text(text)
    found = read(ApiServing, [str(tmp_path / "s.yaml")], {})
    assert (found.models, found.max_batch, found.max_concurrent) == (("runs/demo",), 32, 100)
    assert found.prefix_cache_bytes == 10**10 == found.limits().prefix_cache_bytes


def test_a_file_is_for_several_commands(tmp_path):
    (tmp_path / "s.yaml").write_text("model: a\nserving:\n  port: 9\n  temperature: 0.5\n")
    assert read(AnswerOptions, [str(tmp_path / "s.yaml")], {}, beside=ApiOptions.model_fields).temperature == 0.5


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("model: a", "has no section `serving`"),
        ("model: a\nserving: {quantization: int4}", "gym quantize RUN"),
        ("model: a\nserving: {model_format: exotic}", "no engine is known for `exotic`"),
        ("model: a\nserving:\n  batch_syze: 1", r"s\.yaml:3"),
    ],
)
def test_a_file_that_says_what_cannot_be(tmp_path, text, why):
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(GymError, match=why):
        read(ApiServing, [str(tmp_path / "s.yaml")], {})


def test_a_file_of_llamafactory(tmp_path):
    file = tmp_path / "lf.yaml"
    file.write_text(
        "model_name_or_path: base\nadapter_name_or_path: saves/qwen3-4b/lora/sft\ntemplate: phi4\nenable_thinking: null\n"
        "infer_backend: huggingface\ntrust_remote_code: false\ndefault_system: be kind\n"
    )
    found = read(ApiServing, [str(file), "port=9"], {})
    (source,) = found.sources()
    assert (source.path, dict(source.adapters), source.template) == (
        "base",
        {"sft": "saves/qwen3-4b/lora/sft"},
        {"name": "llamafactory", "format": "phi4"},
    )
    assert found.enable_thinking is False and "<|im_sep|>" in str(named_template(source.template or "").build())
    assert (found.tenant, found.system, found.max_tokens, found.port) == ("sft", "be kind", 1024, 9)
    assert (found.temperature, found.top_p, found.top_k) == (0.95, 0.7, 50)
    talk = read(AnswerOptions, [str(file), "temperature=0"], {}, beside=ApiOptions.model_fields)
    assert (talk.temperature, talk.system, talk.tenant) == (0, "be kind", "sft")


@pytest.mark.parametrize(("backend", "engine"), [("huggingface", "local"), ("vllm", "vllm")])
def test_the_dtype_of_a_file_of_llamafactory_is_that_of_the_engine(tmp_path, backend, engine):
    (tmp_path / "lf.yaml").write_text(
        f"model_name_or_path: base\ntemplate: qwen3\ninfer_backend: {backend}\ninfer_dtype: float32\n"
    )
    found = read(ApiServing, [str(tmp_path / "lf.yaml")], {})
    assert found.engine == read(ApiServing, ["base", f"engine={engine}", "engine.dtype=float32"], {}).engine


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("infer_backend: exotic", r"lf\.yaml:2"),
        ("infer_backend: sglang", "sglang.launch_server"),
        ("temperatures: 1", "did you mean `temperature`"),
        ("adapter_name_or_path: a,b", "several adapters"),
        ("num_beams: 4", "set it to 1"),
    ],
)
def test_a_file_of_llamafactory_that_says_what_nobody_does(tmp_path, line, why):
    (tmp_path / "lf.yaml").write_text(f"model_name_or_path: base\n{line}\n")
    with pytest.raises(GymError, match=why):
        read(ApiServing, [str(tmp_path / "lf.yaml")], {})


def test_defaults_are_those_that_pages_say():
    said = (Path(__file__).parents[3] / "docs/serving.md").read_text()
    usual = ApiOptions()
    for name in ("max_connections", "max_messages"):
        assert f"| `{name}` | {getattr(usual, name)} |" in said
    assert usual.max_body_bytes == 2 * 2**20 and "| `max_body_bytes` | 2 MiB |" in said
    assert f"| `request_seconds` | {usual.request_seconds:g} |" in said and usual.local
