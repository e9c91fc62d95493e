"""A strategy of Flower whose aggregation is a merger: what each node sends is an input, as with `gym merge`."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from gym_core import Artifact, GymError
from gym_core.component import load_object
from gym_core.files import expanded
from gym_core.record import plain
from gym_deltasoup.artifact_merge import check_free, merge_artifacts
from gym_deltasoup.config.flower import FederatedRounds
from gym_deltasoup.flower.records import arrays_of, kind_of, merged_arrays, write
from gym_deltasoup.kinds import name_of, require
from gym_deltasoup.sources.inputs import Input
from gym_deltasoup.vector_merge import expected
from gym_deltasoup.work_folders import TAKEN, clear_left, work_folder

_log = logging.getLogger(__name__)
ARRAYS = "arrays"  #: what Flower calls the weights of a message


class MergerStrategy(FedAvg):
    """Samples nodes as Flower does, and merges what they reply by the rules of Gym.

    What a node says of itself, such as how many examples it has, moves nothing. Replies that are not of the form of what was sent
    are as inputs that are not finite: left out by robust mergers, and an error with others.
    """

    def __init__(self, config: FederatedRounds) -> None:
        """Look at where all begin.

        Raises GymError where that is neither a model nor a plain LoRA, or the merger hides inputs, and BusyError where the output
        is there already.
        """
        if config.merger.hides_inputs():
            why = f"{name_of(config.merger)} promises something of one merge, and nobody keeps an account of several rounds here"
            raise GymError(
                why, key="merger", fix="use `gym soup serve`, which does, or noise on the nodes: see docs/privacy.md"
            )
        clear_left(expanded(config.output), TAKEN)  # of a first round that was killed
        check_free(expanded(config.output))
        super().__init__(config.fraction, 0.0, config.min_nodes, 0, config.min_nodes, arrayrecord_key=ARRAYS)
        self.config = config
        self.start_folder, self.output = expanded(config.start), expanded(config.output)
        self.kind = kind_of(self.start_folder)
        self.current = self.start_folder  #: what the last round gave
        self.arrays = arrays_of(self.start_folder)  #: the same, as it is sent
        self.evaluate: Callable[[Artifact], float] | None = None
        if config.evaluate is not None:
            self.evaluate = load_object(config.evaluate)

    def run(self, grid: Grid) -> Result:
        """Carry out all rounds."""
        return self.start(grid, self.arrays, self.config.rounds, self.config.timeout)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask nodes to train. Raises GymError for arrays that are not those of this strategy: changes are taken from them."""
        if arrays.object_id != self.arrays.object_id:
            raise GymError("a round begins with other weights than the last one gave", key="start", fix="call `run`")
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Merge what came. Raises GymError where the merger refuses it; returns None where too little of it is sound."""
        self.output.mkdir(parents=True, exist_ok=True)
        came, refused = dict[str, Message](), dict[str, str]()
        for reply in sorted(replies, key=lambda reply: reply.metadata.src_node_id):
            name = f"node-{reply.metadata.src_node_id}"
            if came.setdefault(name, reply) is not reply:
                refused[name] = "it replied more than once"  # and counts with the first
        told: dict[str, object] = {"round": server_round, "replies": len(came), "refused": refused}
        with work_folder(self.output, TAKEN) as folder:
            inputs = self._inputs(came, refused, folder)
            if len(inputs) < self.config.min_nodes:
                _log.warning(
                    "round %d changes nothing: %d of %d replies are sound", server_round, len(inputs), len(came)
                )
                return None, self._told(told)
            told |= self._merged(server_round, inputs, len(came))
        return self.arrays, self._told(told)

    def _inputs(self, replies: Mapping[str, Message], refused: dict[str, str], folder: Path) -> list[Input]:
        """Write what each node sent, and say in `refused` why not, where it is not of the form of what it was sent."""
        inputs, merger = [], self.config.merger
        for name, reply in replies.items():
            try:
                inputs.append(Input(write(_arrays(reply), self.start_folder, folder / name), name))
                continue
            except GymError as error:
                refused[name] = error.problems[0].why
            _log.warning("%s is left out: %s", name, refused[name])
            if merger.tolerates(1000) == 0:
                fix = "leave the node out, or use byzantine_robust"
                raise GymError(f"{name}: {refused[name]}, and {name_of(merger)} is no robust merger", fix=fix)
        return inputs

    def _merged(self, server_round: int, inputs: list[Input], replies: int) -> dict[str, object]:
        config, models = self.config, self.kind == "model"
        hostile = expected(config.merger, replies, config.hostile, config.byzantine_threshold)
        if hostile:
            require(config.merger, replies, hostile)
        made = merge_artifacts(
            config.merger,
            inputs,
            self.output / f"round-{server_round}",
            base=str(self.current.absolute()) if models else None,
            hostile=min(hostile, config.merger.tolerates(len(inputs))),
            evaluate=self.evaluate,
            announce=_log.info,
        )
        self.current = made.artifact.path
        self.arrays = arrays_of(self.current) if models else merged_arrays(self.current, self.start_folder)
        report = made.report
        return {"tolerated_byzantine": made.tolerated_byzantine, "excluded": report["excluded"]}

    def _told(self, told: dict[str, object]) -> MetricRecord:
        with (self.output / "rounds.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(plain(told)) + "\n")
        return MetricRecord({})


def _arrays(reply: Message) -> ArrayRecord:
    """Return the weights of a reply. Raises GymError where it has none."""
    if reply.has_error():
        raise GymError(f"an error in place of weights: {reply.error.reason[:200]}")
    if [*reply.content.array_records] != [ARRAYS]:
        raise GymError(f"not one record of weights, `{ARRAYS}`")
    return reply.content.array_records[ARRAYS]
