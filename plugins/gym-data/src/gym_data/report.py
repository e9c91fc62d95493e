"""What became of the rows, as plain data for `run.json` and the preview."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from typing import Any

import numpy as np

from gym_data.mixing import Order
from gym_data.opened_source import Opened
from gym_data.provenance import name_of
from gym_data.row_reader import Reader
from gym_data.rows import JUDGED, OPPOSITES
from gym_data.tally import Tally

BINS = 12  #: bars of the histogram of lengths


def report_of(
    reader: Reader, lengths: Sequence[int], learnt: Sequence[int], train: Order, validation: Order, duplicates: int
) -> dict[str, Any]:
    """Count rows, examples and tokens; `lengths[i]` and `learnt[i]` are the tokens of sequence `i` and those trained on."""
    sizes = np.asarray(lengths, dtype=np.int64)[train]
    template = reader.config.template
    return {
        "template": (template.title or name_of(template)) if template else "the model's own",
        "rows": sum(tally.rows for tally in reader.tallies),
        "examples": len(train),
        "validation": len(validation),
        "tokens": int(sizes.sum()),
        "trained_tokens": int(np.asarray(learnt, dtype=np.int64)[train].sum()),
        "duplicates": duplicates,
        "truncated": sum(tally.truncated for tally in reader.tallies),
        "dropped": sum(sum(tally.dropped.values()) for tally in reader.tallies),
        "bad": sum(sum(tally.bad.values()) for tally in reader.tallies),
        "lengths": lengths_of(sizes),
        "sources": [_source(opened, tally) for opened, tally in zip(reader.opened, reader.tallies, strict=True)],
        "notes": [
            *(note for tally in reader.tallies for note in _notes(tally, reader.branches)),
            *_one_sided(reader),
            *_answers_alone(reader),
        ],
    }


def left_out(report: Mapping[str, Any]) -> str:
    """Say what is not trained on, and most often why; empty where all is."""
    reasons = Counter[str]()
    for source in report.get("sources", ()):
        reasons.update(source["bad"])
        reasons.update(source["dropped"])
    first = reasons.most_common(3)
    told = ", ".join(f"{reason} ({count:,})" for reason, count in first)
    if others := reasons.total() - sum(count for _, count in first):
        told += f", for other reasons ({others:,})"
    return f"left out of {report['rows']:,} rows: {told}" if told else ""


def lengths_of(sizes: np.ndarray) -> dict[str, Any]:
    """Return mean, percentiles and a histogram: pairs of a bar's upper edge and its count."""
    sizes = sizes if len(sizes) else np.zeros(1)
    counts, edges = np.histogram(sizes, bins=BINS, range=(0, max(1, int(sizes.max()))))
    return {
        "mean": round(float(sizes.mean()), 1),
        **{f"p{percent}": int(np.percentile(sizes, percent)) for percent in (50, 90, 99)},
        "max": int(sizes.max()),
        "histogram": [[int(np.ceil(edge)), int(count)] for edge, count in zip(edges[1:], counts, strict=True)],
    }


def _source(opened: Opened, tally: Tally) -> dict[str, Any]:
    return {
        "name": tally.name,
        "format": name_of(opened.format),
        "rows": tally.rows,
        "bad": dict(tally.bad),
        "dropped": dict(tally.dropped),
        "noticed": dict(tally.noticed),
        "left_out_by_template": dict(tally.lost),
        "truncated": tally.truncated,
    }


def seen_in_training(train: Order, validation: Order, groups: Sequence[int]) -> list[str]:
    """Say how many examples for validation are trained on too; `groups[i]` is equal for equal contents."""
    learnt = {groups[example] for example in train.tolist()}
    count = sum(groups[example] in learnt for example in validation.tolist())
    return [f"{count:,} of {len(validation):,} examples for validation are trained on too"] if count else []


def without_figure(asked: Sequence[str], measured: Container[str]) -> list[str]:
    """Say which sources have nothing for validation, where each of those asked for should have a figure of its own."""
    return [f"{name}: nothing of it is for validation, so it has no figure" for name in asked if name not in measured]


def _one_sided(reader: Reader) -> list[str]:
    """Say where every judgement is the same."""
    counts = sum((tally.noticed for tally in reader.tallies), Counter[str]())
    sides = OPPOSITES.get(reader.shape, ())
    missing = [side for side in sides if not counts[side]]
    one_sided = 0 < len(missing) < len(sides)
    return [f"there are no {side}: nothing tells good from bad" for side in missing] if one_sided else []


def _answers_alone(reader: Reader) -> list[str]:
    """Say that what is judged is learnt, where all of a conversation was asked for."""
    asked = reader.config.train_on == "all" and reader.shape in JUDGED
    return ["`train_on: all` is of conversations: of these rows the judged answers alone are learnt"] if asked else []


def _notes(tally: Tally, branches: bool) -> list[str]:
    """Say what a user may not expect."""
    notes = [
        f"{tally.name}: in {count:,} rows the chat template leaves out {what}; nothing is learnt of it"
        for what, count in tally.lost.items()
    ]
    if tally.spelt:
        notes.append(
            f"{tally.name}: {tally.spelt:,} rows spell out special tokens, which are learnt as text; "
            "`split_special_tokens: false` reads them as these tokens"
        )
    unread = ", ".join(f"`{name}`" for name in sorted(tally.unread - tally.read))
    if unread:
        notes.append(
            f"{tally.name}: nothing is learnt of the text in columns that the row format does not read: {unread}"
        )
    if tally.parted:
        shared = (
            f"what these begin with is computed once: {tally.joined:,} tokens in place of {tally.apart:,}"
            if branches
            else f"{tally.apart:,} tokens, most of them again and again; `train_on: last` avoids it"
        )
        notes.append(
            f"{tally.name}: {tally.parted:,} conversations are learnt in several sequences, because the chat template "
            f"shows earlier answers differently; {shared}"
        )
    if tally.unclosed:
        notes.append(
            f"{tally.name}: {tally.unclosed} sequences do not end with a special token, so the model does not learn "
            "where to stop"
        )
    return notes
