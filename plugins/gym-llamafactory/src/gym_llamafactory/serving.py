"""A file of LLaMA-Factory for `chat` or `api`, translated into the options of `gym chat`, `gym api` and `gym inference`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from gym_core.discovery import nearest
from gym_core.errors import GymError, Problem
from gym_core.files import expanded
from gym_core.sections import Findings
from gym_data.location import artifact_at, lasting

ENGINES = {"huggingface": "local", "vllm": "vllm"}
ENGINE_OPTIONS = {
    "huggingface": {"infer_dtype": "dtype"},
    "vllm": {
        "infer_dtype": "dtype",
        "vllm_gpu_util": "gpu_memory_utilization",
        "vllm_max_lora_rank": "max_lora_rank",
    },
}
"""Keys of an engine that it has under another name."""
ELSEWHERE = {"sglang": "set `infer_backend: vllm`, or run `python -m sglang.launch_server` and ask that"}
"""What to do in place of a backend that nobody brings."""
USUAL = {"temperature": 0.95, "top_p": 0.7, "top_k": 50, "max_new_tokens": 1024}
"""What LLaMA-Factory means where these are left out."""
OPTIONS = {
    "default_system": "system",
    "enable_thinking": "enable_thinking",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}
"""Options that are the same under another name."""
STATED: dict[str, tuple[Any, ...]] = {
    "trust_remote_code": (False, True),  # no code of a model is run, whatever is allowed
    "skip_special_tokens": (True,),
    "use_kv_cache": (True,),
    "num_beams": (1,),
    "quantization_bit": (None,),
    "rope_scaling": (None,),
}
"""Values that change nothing here; others are refused."""
VOCABULARY = (
    "resize_vocab",
    "add_tokens",
    "add_special_tokens",
    "new_special_tokens_config",
    "init_special_tokens",
)
"""Keys that said what was trained: the folder of a model or an adapter has its tokenizer."""
UNREAD = {
    *VOCABULARY,
    "stage",
    "finetuning_type",
    "flash_attn",
    "cutoff_len",
    "max_length",
    "length_penalty",
    "infer_dtype",  # said to be nothing
    "offload_folder",
    "lora_rank",
    "lora_alpha",
    "lora_target",
    "vllm_gpu_util",
    "vllm_enforce_eager",
    "vllm_max_lora_rank",
    "sglang_mem_fraction",
    "sglang_tp_size",
    "sglang_lora_backend",
}
"""Keys that say what the weights or the engine know by themselves."""
LENGTHS = {"vllm": "vllm_maxlen", "sglang": "sglang_maxlen"}


def translate(data: Mapping[str, Any], found: Findings) -> dict[str, Any]:
    """Return the options that a file means. Notes every key that says what nobody does here."""
    given = dict(data)
    options: dict[str, Any] = {"models": [given.pop("model_name_or_path")]}
    backend = str(given.pop("infer_backend", "huggingface"))
    if backend not in ENGINES:
        fix = ELSEWHERE.get(backend, f"one of: {', '.join(ENGINES)}")
        _add(found, "infer_backend", f"there is no `{backend}` here", fix)
    else:
        named = ENGINE_OPTIONS[backend]
        own = {named[key]: given.pop(key) for key in named if given.get(key) is not None}
        options |= {"engine": {"name": ENGINES[backend], **own}} if own or backend != "huggingface" else {}
    for engine, key in LENGTHS.items():
        length = given.pop(key, None)
        if engine == backend and length is not None:
            options["max_context"] = length
    adapters = _adapters(given.pop("adapter_name_or_path", None), found)
    if adapters and backend == "huggingface" and _of_this(options["models"][0], *adapters.values()):
        options["models"] = [f"{_name(options['models'][0])}={next(iter(adapters.values()))}"]
    elif adapters:
        options |= {"adapters": adapters, "tenant": next(iter(adapters))}
    if template := given.pop("template", None):
        options["template"] = {"name": "llamafactory", "format": str(template)}
    if given.get("enable_thinking", True) is None:
        # beside other answers it is false: an empty thought stands in the prompt
        given["enable_thinking"] = False
    sampled = given.pop("do_sample", True)
    for key, usual in USUAL.items():
        given[key] = usual if given.get(key) is None else given[key]
    if sampled is False:
        given["temperature"] = 0.0
    for key, value in given.items():
        if key in OPTIONS:
            options |= {OPTIONS[key]: value} if value is not None else {}
        elif key in STATED:
            if value not in (None, *STATED[key]):
                _add(found, key, "is not supported", f"set it to {STATED[key][0]}, or leave it out")
        elif key not in UNREAD:
            near = nearest(key, {*OPTIONS, *STATED, *UNREAD, "adapter_name_or_path", "infer_backend", "template"})
            fix = f"did you mean `{near}`?" if near else "leave it out; `gym api --help` says what can be set"
            _add(found, key, "is no key of a file for `chat` or `api`", fix)
    return options


def _adapters(given: Any, found: Findings) -> dict[str, str]:
    """Return the adapters by name: the last part of the path that says something."""
    paths = [part.strip() for part in str(given or "").split(",") if part.strip()]
    if len(paths) > 1:
        _add(found, "adapter_name_or_path", "names several adapters, which would be merged", "merge them, and name one")
    return {_name(path): path for path in paths[:1]}


def _of_this(base: str, adapter: str) -> bool:
    """Whether an adapter in a folder says that it belongs to this base: it is then opened as a whole, whatever it changes."""
    if not expanded(adapter).is_dir():
        return False
    with suppress(GymError):
        found = artifact_at(adapter)
        return found.kind == "adapter" and lasting(found.base or "") == lasting(base)
    return False


def _name(path: str) -> str:
    parts = [part for part in Path(path).parts if part not in ("/", ".", "..", "~")]
    name = re.sub(r"[^A-Za-z0-9_.\-]", "-", (parts or ["adapter"])[-1])
    return name.lstrip(".-") or "adapter"


def _add(found: Findings, key: str, why: str, fix: str) -> None:
    found.problems.append(Problem(why, found.where((key,)), key, fix))
