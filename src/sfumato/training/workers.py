"""Workers: processes that take a run's steps together, with torch.distributed, started by torchrun.

Each worker has the model, the optimizer and the average. Only the expensive work is divided: each micro-batch of a step
goes to one worker; the workers' sums, integers on the grid, are added; each worker draws the noise of its own blocks
and sends the noisy blocks to the others. Sums on the grid do not depend on the division, and noise is drawn by
(key, step, parameter, block), so the result is bit for bit that of one process. One worker, the leader, writes the run
directory.

Each step sends 8 bytes of sums and 4 bytes of noisy gradients per parameter, for any batch size.

**Trust.** Sums without noise cross the network, and neither gloo nor NCCL encrypts or authenticates
anything. All workers and the network between them must be trusted like one machine. Keys never cross the network: they
are in the run directory, which all workers can read.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed

from sfumato._checks import SfumatoError
from sfumato._devices import is_out_of_memory
from sfumato._files import write
from sfumato.gradients import GridSum
from sfumato.privacy import Ledger
from sfumato.privacy.statements.wording import ProcessCounts
from sfumato.randomness import NoiseState, owner_key
from sfumato.randomness.keys import HOME_VARIABLE, home
from sfumato.randomness.noise.blocks import blocks_of
from sfumato.runs.directory import WORKERS, RunDirectory

SAME = "start all workers with the same data, options and package versions"


class LostError(SfumatoError):
    """The connection to another worker broke."""


@dataclass(eq=False)
class Workers:
    """The workers of a run, seen from this process. `Workers()` is a single process.

    Args:
        rank: of this process, from 0.
        count: number of workers.
        group: their process group in torch.distributed.
        machines: number of machines that they run on.

    **Guarantee.** `reduce_scatter` gives the sum over everything dealt in the step, or refuses: it checks that each
    micro-batch went to one worker, that all workers drew the same participants, and that each processed what it was
    dealt. It leaves each worker the total of its own blocks, and zero elsewhere; `all_gather` collects every block,
    after its noise, from its own worker.
    """

    rank: int = 0
    count: int = 1
    group: Any = None
    machines: int = 1
    _dealt: tuple[int, int, int, int] | None = field(default=None, init=False, repr=False)

    @property
    def is_leader(self) -> bool:
        """Whether this worker writes the run directory and reports progress."""
        return self.rank == 0

    @property
    def share(self) -> tuple[int, int]:
        """This worker's blocks of the noise: every `count`-th, starting at `rank`."""
        return self.rank, self.count

    def deal(self, step: int, participants: np.ndarray, sizes: Sequence[int]) -> list[int]:
        """The ascending indices of this worker's micro-batches. Deals the largest first, each to the least loaded
        worker.

        Args:
            participants: of the whole step; all workers must have drawn the same.
            sizes: of the step's micro-batches.
        """
        loads, own = np.zeros(self.count), []
        for place in sorted(range(len(sizes)), key=lambda place: -sizes[place]):
            worker = int(loads.argmin())
            loads[worker] += sizes[place]
            own += [place] if worker == self.rank else []
        drawn = hashlib.sha256(np.ascontiguousarray(participants, np.int64).tobytes() + repr(list(sizes)).encode())
        self._dealt = step, int.from_bytes(drawn.digest()[:7]), len(sizes), len(own)
        return sorted(own)

    def reduce_scatter(self, own: GridSum, step: int, done: int) -> None:
        """Adds the sums of all workers. Afterwards `own` holds the total in this worker's blocks and zero elsewhere.

        Args:
            own: the sum over the micro-batches dealt to this worker.
            done: how many these were.
        """
        if self.count == 1:
            return
        dealt, self._dealt = self._dealt, None
        if dealt is None or (dealt[0], dealt[3]) != (step, done):
            raise SfumatoError(
                f"worker {self.rank} added {done} micro-batches in step {step}, but was dealt "
                f"{'none' if dealt is None else f'{dealt[3]} in step {dealt[0]}'}",
                "deal the step's micro-batches (`Workers.deal`), and add each of the worker's own once",
            )
        said = self._numbers([*dealt, sum(value.numel() for value in own.integers.values())])
        what = ("step", "participants", "number of micro-batches", "micro-batches dealt", "number of parameters")
        odd = [name for name, told in zip(what, said.t(), strict=True) if name != what[3] and len(told.unique()) > 1]
        odd = odd or ([] if int(said[:, 3].sum()) == dealt[2] else [what[3]])
        if odd:
            raise SfumatoError(f"the workers differ in step {step}, in: {', '.join(odd)}", SAME)
        parts = self._split_blocks(own.integers)
        lengths = [sum(map(len, part)) for part in parts]
        mine, length = parts[self.rank], lengths[self.rank]
        sent = torch.cat([block for part in parts for block in part])
        received = self._all_to_all(sent, lengths, [length] * self.count)
        for value in own.integers.values():
            value.zero_()
        sums = received.view(self.count, length).sum(dim=0)
        for block, values in zip(mine, sums.split(list(map(len, mine))), strict=True):
            block.copy_(values)

    def all_gather(self, noisy: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The whole tensors, each block from its own worker. Reads only this worker's blocks of `noisy`."""
        if self.count == 1:
            return dict(noisy)
        found = {name: torch.empty_like(value, memory_format=torch.contiguous_format) for name, value in noisy.items()}
        parts, into = self._split_blocks(noisy), self._split_blocks(found)
        lengths = [sum(map(len, part)) for part in parts]
        own = torch.cat(parts[self.rank] or [next(iter(noisy.values())).new_empty(0)])
        received = self._all_to_all(own.repeat(self.count), [len(own)] * self.count, lengths)
        blocks = [block for part in into for block in part]
        for block, values in zip(blocks, received.split(list(map(len, blocks))), strict=True):
            block.copy_(values)
        return found

    def ordered_sum(
        self, found: Iterable[Mapping[str, Tensor]], pieces: int, like: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """The sum over a step's micro-batches, added in the order of a single process.

        For unbounded sums, which cannot be on the grid.

        Args:
            found: tensors by name for each of this worker's micro-batches: every `count`-th, starting at `rank`.
            pieces: number of micro-batches of all workers, at least one.
            like: tensors with these names and shapes.
        """
        found = iter(found)
        if self.count == 1:
            total = dict(next(found))
            for one in found:
                total = {name: value.add_(one[name]) for name, value in total.items()}
            return total
        summed = {name: torch.empty_like(value, memory_format=torch.contiguous_format) for name, value in like.items()}
        own = self._split_blocks(summed)[self.rank]
        length, total = sum(map(len, own)), None
        for start in range(0, pieces, self.count):
            busy = min(self.count, pieces - start)  # in the last round some workers may have none
            one = next(found) if self.rank < busy else {}
            parts = self._split_blocks({name: value.contiguous() for name, value in one.items()})
            sent = torch.cat([block for part in parts for block in part] or [next(iter(summed.values())).new_empty(0)])
            lengths = [sum(map(len, part)) for part in parts]
            for row in self._all_to_all(sent, lengths, [length if at < busy else 0 for at in range(self.count)]).view(
                busy, length
            ):
                total = row.clone() if total is None else total.add_(row)
        assert total is not None
        for block, values in zip(own, total.split(list(map(len, own))), strict=True):
            block.copy_(values)
        return self.all_gather(summed)

    def compute_rows(
        self, pieces: Sequence[np.ndarray], compute: Callable[[Sequence[np.ndarray]], Iterable[Tensor]]
    ) -> Tensor:
        """Computes rows (N, ...) for records, in the order of the pieces, on all workers.

        Each worker computes every `count`-th piece, and all receive all rows.

        Args:
            pieces: the records' numbers; each piece is computed as one batch.
            compute: yields (n, ...) on the CPU for each piece that it is given.
        """
        if self.count == 1:
            return torch.cat(list(compute(pieces)))
        own = list(compute(pieces[self.rank :: self.count] or pieces[:1]))
        filled = own[0].new_zeros(-(-len(pieces) // self.count), max(map(len, pieces)), *own[0].shape[1:])
        for place, some in enumerate(own):
            filled[place, : len(some)] = some
        found = torch.stack(self.gather(filled), dim=1).flatten(0, 1)
        return torch.cat([some[: len(piece)] for some, piece in zip(found, pieces, strict=False)])

    def gather_state(self, state: NoiseState) -> NoiseState:
        """The noise state with the blocks of all workers, for a checkpoint. Leaves `state` unchanged."""
        if self.count == 1:
            return state
        found = {name: value for name, value in state.tensors.items() if not value.dim()}  # the same on all workers
        kept = {name: value for name, value in state.tensors.items() if value.dim()}
        rows = [
            self.all_gather({name: value[place] for name, value in kept.items()})
            for place in range(max((len(value) for value in kept.values()), default=0))
        ]
        found |= {name: torch.stack([row[name] for row in rows]) for name in kept}
        return NoiseState(step=state.step, tensors=found)

    def gather(self, own: Tensor) -> list[Tensor]:
        """The tensors of all workers by rank; all must have the same shape."""
        if self.count == 1:
            return [own]
        found = [torch.empty_like(own) for _ in range(self.count)]
        self._run_collective(distributed.all_gather, found, own)
        return found

    def all_reduce(self, number: float) -> float:
        """The sum of a number over the workers, exact for multiples of a power of two."""
        if self.count == 1:
            return number
        value = torch.tensor([number], dtype=torch.float64)
        self._run_collective(distributed.all_reduce, value)
        return float(value)

    def broadcast_bool(self, yes: bool) -> bool:
        """The leader's value."""
        return bool(self.broadcast({"yes": yes})["yes"])

    def broadcast(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """The leader's message (plain data); the messages of other workers are ignored."""
        return dict(message) if self.count == 1 else self.broadcast_json(message)

    def refuse_different(self, facts: Mapping[str, str]) -> None:
        """Refuses to continue if these facts (data, versions, task) differ from the leader's."""
        said = self.broadcast(facts)
        odd = sorted(name for name in {*said, *facts} if said.get(name) != facts.get(name))
        if odd:
            raise SfumatoError(f"this worker differs from the leader in: {', '.join(odd)}", SAME)

    def refuse_diverged(self, tensors: Mapping[str, Tensor], step: int) -> None:
        """Refuses to continue if the workers' tensors differ."""
        if self.count == 1:
            return
        digest = hashlib.sha256()
        for name, value in sorted(tensors.items()):
            content = value.detach().cpu().contiguous().view(-1).view(torch.uint8)
            digest.update(name.encode() + content.numpy().tobytes())
        said = self._numbers([int.from_bytes(digest.digest()[:7])])
        if len(said.unique()) > 1:
            raise SfumatoError(
                f"the workers' weights differ after step {step}: their processors round differently",
                "start the run again on machines of one kind",
            )

    def record_in(self, ledger: Ledger) -> None:
        """Record in the ledger how many processes and machines will see sums without noise, before any is sent."""
        if self.count > 1:
            ProcessCounts(processes=self.count, machines=self.machines).record(ledger)

    def announce_run(self, run: RunDirectory) -> None:
        """Announces the run directory to the other workers, with a token that proves that they read the same one."""
        if self.count > 1:
            token = secrets.token_hex(16)
            write(run / WORKERS, token.encode(), private=True)
            self.broadcast_json({"run": str(run.path.absolute()), "token": token, "owner": _owner(token)})

    def receive_run(self) -> RunDirectory | None:
        """The run directory that the leader announces; None at the end."""
        said = self.broadcast_json()
        if "run" not in said:
            return None
        run = RunDirectory(said["run"])
        found = (run / WORKERS).read_text("utf-8") if (run / WORKERS).is_file() else ""
        if found != said["token"]:
            raise SfumatoError(
                f"this worker cannot read the leader's run directory {run.path}",
                "share it among all workers under the same path",
            )
        if not hmac.compare_digest(said["owner"], _owner(found)):
            raise SfumatoError(
                f"the owner's key in {home()} differs from the leader's",
                f"set {HOME_VARIABLE} to the same directory for all workers, or copy the leader's owner.key to each",
            )
        return run

    def broadcast_json(self, message: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The leader's message, sent as JSON: nothing received is ever unpickled."""
        text = json.dumps(message or {}).encode()
        size = torch.tensor([len(text)])
        self._run_collective(distributed.broadcast, size, 0)
        content = torch.frombuffer(bytearray(text), dtype=torch.uint8) if self.is_leader else None
        content = torch.empty(int(size), dtype=torch.uint8) if content is None else content
        self._run_collective(distributed.broadcast, content, 0)
        return json.loads(content.numpy().tobytes())

    def _numbers(self, numbers: Sequence[int]) -> Tensor:
        """The numbers of all workers, int64 (workers, n)."""
        return torch.stack(self.gather(torch.tensor(numbers, dtype=torch.int64)))

    def _split_blocks(self, tensors: Mapping[str, Tensor]) -> list[list[Tensor]]:
        """The blocks of each worker, as flat views."""
        blocks = blocks_of({name: value.shape for name, value in tensors.items()})
        flat = [tensors[name].view(-1)[columns] for name, columns in blocks]
        return [flat[rank :: self.count] for rank in range(self.count)]

    def _all_to_all(self, values: Tensor, sent: list[int], received: list[int]) -> Tensor:
        """Sends pieces of `values`, of lengths `sent`, to the workers; returns theirs, of lengths `received`."""
        found = values.new_empty(sum(received))
        self._run_collective(distributed.all_to_all_single, found, values, received, sent)
        return found

    def _run_collective(self, operation: Callable[..., Any], found: Any, *given: Any) -> None:
        """Runs a collective operation of torch; on an accelerator it may complete later."""
        try:
            operation(found, *given, group=self.group)
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            raise LostError(
                f"the connection to another worker broke ({str(error).splitlines()[0]})",
                "give the same command again: the run resumes from its last checkpoint",
            ) from error


def _owner(token: str) -> str:
    """Proves knowledge of the owner's key without revealing it."""
    return hmac.new(owner_key(), token.encode(), hashlib.sha256).hexdigest()


ALONE = Workers()
"""A single process."""
