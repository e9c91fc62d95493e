"""How alike two texts are: BLEU-4 of characters, and ROUGE of words, Chinese ones included.

The figures are those of LLaMA-Factory's `predict_with_generate`: BLEU of Papineni et al. 2002 with the third smoothing of Chen
and Cherry 2014 (a geometric sequence), F1 of ROUGE (Lin 2004) over the words that jieba finds; in percent, to four places.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np

from gym_core import cache_dir

ROUGE = ("rouge-1", "rouge-2", "rouge-l")
BLEU = "bleu-4"


def scores(pairs: Iterable[tuple[str, str]]) -> dict[str, float]:
    """Return the mean of each score over pairs of prediction and label. Raises ValueError where there is no pair."""
    found = [score(predicted, label) for predicted, label in pairs]
    if not found:
        raise ValueError("nothing was predicted")
    return {name: float(np.mean([each[name] for each in found])) for name in (BLEU, *ROUGE)}


def score(predicted: str, label: str) -> dict[str, float]:
    """Return the scores of a text, from 0 to 100."""
    from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu
    from rouge_chinese import Rouge

    words, known = (" ".join(_words().cut(text)) for text in (predicted, label))
    rouge = dict.fromkeys(ROUGE, 0.0)
    if words.split() and known.split():
        found = Rouge().get_scores(words, known)[0]
        rouge = {name: round(found[name]["f"] * 100, 4) for name in ROUGE}
    bleu = sentence_bleu([list(label)], list(predicted), smoothing_function=SmoothingFunction().method3)
    return {BLEU: round(float(bleu) * 100, 4), **rouge}


@cache
def _words() -> Any:
    import jieba

    jieba.setLogLevel("ERROR")
    found = jieba.Tokenizer()
    found.tmp_dir = str(cache_dir())  # not a folder that others may write
    return found
