"""Reward models behind the engine `local`."""

from __future__ import annotations

import asyncio
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

from gym_core import GymError, execute, load_recipe
from gym_serve.contract import Limits, ModelSource, Request
from gym_serve.errors import RequestError
from gym_serve.local.config import Local
from gym_testkit.bench import Bench

PAIR = ("3 + 4", "7")
TALK = [{"role": "user", "content": PAIR[0]}, {"role": "assistant", "content": PAIR[1]}]


@pytest.mark.parametrize("labels", [1, 3])
def test_a_classifier_of_transformers_scores_as_it_does_there(tmp_path: Path, labels: int) -> None:
    """One with several labels has no one score, and is refused."""
    base = Bench(tmp_path).model()
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(base, num_labels=labels)
    model = AutoModelForSequenceClassification.from_config(config).eval()
    model.save_pretrained(tmp_path / "judge")
    shutil.copy(base / "tokenizer.json", tmp_path / "judge")
    shutil.copy(base / "tokenizer_config.json", tmp_path / "judge")
    source = ModelSource("judge", str(tmp_path / "judge"))
    if labels > 1:
        with pytest.raises(GymError, match="gives 3 numbers"):
            Local().build(artifacts=[source], limits=Limits())
        return
    engine = Local().build(artifacts=[source], limits=Limits())
    texts = ["a text", "another, longer one"]
    encoded = [torch.tensor([engine.served["judge"].tokenizer.encode(text)]) for text in texts]
    wanted = [model(tokens).logits.item() for tokens in encoded]
    assert asyncio.run(engine.score("judge", texts)) == pytest.approx(wanted, abs=1e-5)
    asyncio.run(engine.close())
    options = LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM", init_lora_weights=False)
    get_peft_model(AutoModelForCausalLM.from_pretrained(base), options).save_pretrained(str(tmp_path / "theirs"))
    with pytest.raises(GymError, match="has no tenants"):
        Local().build(artifacts=[replace(source, adapters={"ann": str(tmp_path / "theirs")})], limits=Limits())


def test_a_reward_model_scores_each_input_as_alone_and_answers_nothing(tmp_path: Path) -> None:
    rows = [{"prompt": f"{n} + 4", "chosen": str(n + 4), "rejected": "0"} for n in range(4)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    recipe = {
        "model": "tiny",
        "data": {"sources": str(tmp_path / "rows.jsonl"), "format": "preference"},
        "algorithm": "reward_model",
        "train": {"max_steps": 2, "batch_size": 2, "plot": False, "precision": "fp32"},
        "output": str(tmp_path / "run"),
    }
    execute(load_recipe(recipe))

    async def asked() -> None:
        engine = Local(dtype="float32").build(artifacts=[ModelSource("judge", str(tmp_path / "run"))], limits=Limits())
        assert engine.models()[0].tasks == {"score"}
        other, pair, talk = await engine.score("judge", ["a text of another length", PAIR, TALK])
        assert pair == pytest.approx(talk) and pair != pytest.approx(other)
        assert await engine.score("judge", [TALK]) == [pytest.approx(talk, abs=1e-5)]
        with pytest.raises(RequestError):
            await anext(engine.submit(Request("judge", messages=TALK[:1])))
        await engine.close()

    asyncio.run(asked())
