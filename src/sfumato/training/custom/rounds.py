"""The rounds of a federation: private steps of one site between two exchanges of weights (`private_rounds`).

Weights that come in are post-processing of what other sites released, so they cost this site nothing. Weights that go
out are a function of the site's private steps and of what came in.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sfumato._checks import SfumatoError, positive_integer
from sfumato.experiment.defaults import STEPS_FULL_BATCH
from sfumato.gradients.checks.external_models import undense
from sfumato.privacy import Ledger, PrivacyPlan, Statement
from sfumato.privacy.ledger import RECEIVED, SENT, Entry, lost_steps, read
from sfumato.runs import directory as names
from sfumato.runs import pins, releases
from sfumato.runs.checkpoint import Checkpoint, read_safetensors
from sfumato.training.custom.job import Loss
from sfumato.training.custom.private_steps import private_steps
from sfumato.training.custom.steps import OwnStep, PrivateSteps


class Round:
    """One round: `receive` the weights of the others, iterate over the steps, give the own `weights`.

    Args:
        run: the run that the round belongs to.
        number: the number of rounds before it.
    """

    def __init__(self, run: PrivateRounds, number: int):
        self._run, self.number = run, number
        self._received: tuple[dict[str, Tensor], str] | None = None
        self._repeated = False

    def __repr__(self) -> str:
        return f"round {self.number + 1} of {self._run.rounds}"

    def receive(self, weights: Mapping[str, Any]) -> None:
        """Take over weights from outside: all entries of the model's `state_dict`, as tensors or arrays.

        If the round before was given the same weights, they are a repeated request: no step is taken, and `weights` are
        those that went out then.

        Errors: `SfumatoError` for other names, shapes or types, for values that are not finite, and after the last
        round.
        """
        received = self._run._fitting(weights)
        digest, done = pins.weights_digest(received), self._run.completed
        self._repeated = self._run._repeats(digest, done)
        if done == self._run.rounds and not self._repeated:
            raise SfumatoError(
                f"the privacy budget is used up after round {done}, the last of the plan",
                "leave the federation; more rounds need a run with a plan of its own, whose cost adds to this one's",
            )
        self._received, self.number = (received, digest), done - self._repeated

    def __iter__(self) -> Iterator[OwnStep]:
        """Takes the steps of the round that are left, none after its end. The loop's body runs after each, as in
        `private_steps`."""
        if self._received is None:
            raise SfumatoError(
                f"{self!r} has no weights to start from", "call its receive() with the weights of the federation first"
            )
        if self._run.completed == self.number:
            yield from self._run._take(self.number, *self._received)

    def weights(self) -> dict[str, Tensor]:
        """The weights after the round's last step, on the CPU: a copy of the model's `state_dict`.

        Errors: `SfumatoError` while steps are left, and for weights that later steps have replaced.
        """
        if self._run.completed <= self.number:
            raise SfumatoError(
                f"{self!r} is not finished, so it has no weights to send", "iterate over the round to its end first"
            )
        return self._run._weights_after(self.number)


class PrivateRounds:
    """The result of `private_rounds`: iterate over it for the rounds that are left, then read its statement.

    Attributes:
        rounds: R, the number of rounds.
        plan: the plan of all steps of all rounds.
        directory: the run directory.
    """

    def __init__(self, steps: PrivateSteps, rounds: int):
        self._steps, self.rounds = steps, rounds
        self.plan: PrivacyPlan = steps.plan
        self.directory = steps.directory
        self._each, self._path = steps.plan.steps // rounds, steps.directory / names.CHECKPOINT
        self._unsent: tuple[int, dict[str, Tensor]] | None = None  # until they are asked for, to read no file
        self._settle()

    def __len__(self) -> int:
        """R, the number of rounds of the plan."""
        return self.rounds

    def __repr__(self) -> str:
        return f"PrivateRounds({str(self.directory)!r}, {self.completed} of {self.rounds} rounds: {self.plan!r})"

    @property
    def note(self) -> str:
        """Messages for the owner, for example about earlier runs on the same data; may be empty."""
        return self._steps.note

    @property
    def statement(self) -> Statement:
        """The run's statement, after its last round or its early end."""
        return self._steps.statement

    @property
    def completed(self) -> int:
        """The number of rounds whose steps were all taken."""
        if self._steps.is_finished:
            return self.rounds
        return Checkpoint.step_at(self._path) // self._each if self._path.exists() else 0

    def __iter__(self) -> Iterator[Round]:
        """The rounds that are left. A round that was left unfinished comes again."""
        while (number := self.completed) < self.rounds:
            yield Round(self, number)

    def train(self, weights: Mapping[str, Any]) -> dict[str, Tensor]:
        """A whole round: receives weights, takes the round's steps, and gives the weights to send.

        Errors: as for `Round.receive`.
        """
        turn = Round(self, self.completed)
        turn.receive(weights)
        for _ in turn:
            pass
        return turn.weights()

    def finish(self) -> Statement:
        """Leave the federation early, at the last checkpoint. The statement is still that of the whole plan."""
        self._settle()
        return self._steps.finish()

    def _take(self, number: int, weights: dict[str, Tensor], digest: str) -> Generator[OwnStep]:
        """The steps of a round that are left, and the ledger's lines about its weights.

        **Guarantee.** Steps that were paid from other weights than these and are not in the checkpoint are lost: none
        is repeated with another gradient under its noise. Whether they are depends on the weights alone, which the site
        does not choose, and on no record.
        """
        until = (number + 1) * self._each
        with self._steps._open_ledger() as ledger:
            start = self._begin(ledger, number, digest)
            yield from self._steps._steps(ledger, replace(self._steps._job, received=(start, weights)), until)
            sent = {name: value.detach().cpu().clone() for name, value in self._steps.model.state_dict().items()}
            self._end(ledger, number, sent)
            self._unsent = number, sent

    def _end(self, ledger: Ledger, number: int, weights: dict[str, Tensor]) -> None:
        """The ledger's line about the weights that go out after a round, once; it is on disk before they leave."""
        if self._recorded_sent(ledger.entries) < number:
            ledger.append(SENT, {"round": number, "sha256": pins.weights_digest(weights)})
            ledger.sync()
        if number + 1 == self.rounds:
            self._steps._conclude(ledger)

    def _begin(self, ledger: Ledger, number: int, digest: str) -> int:
        """The step that starts from the weights that came in, as the ledger names it."""
        checkpoint = self._steps._checkpoint(ledger)
        if checkpoint.step > (number + 1) * self._each:
            raise SfumatoError(
                f"another process went on after round {number + 1} of {self.directory}", "give its requests to one"
            )
        if number and checkpoint.step == number * self._each:
            self._end(ledger, number - 1, checkpoint.model)
        paid = ledger.paid
        before = _last(ledger.entries, RECEIVED, number)
        if before is None or before.body["sha256"] != digest or before.body["step"] > checkpoint.step:
            if self._recorded_sent(ledger.entries) >= number:
                raise SfumatoError(
                    f"round {number + 1} has sent its weights, but the checkpoint of {self.directory} is from before",
                    "restore the latest checkpoint; or send the weights that the round began with",
                )
            if not lost_steps(ledger.entries, paid).issuperset(range(checkpoint.step, paid)):
                releases.lose(ledger, checkpoint.step)
            before = ledger.append(RECEIVED, {"round": number, "step": checkpoint.step, "sha256": digest})
            ledger.sync()
        return before.body["step"]

    def _repeats(self, digest: str, done: int) -> bool:
        """Whether the weights with this digest are those that the last of `done` rounds began with, and changed."""
        if not done:
            return False
        entries = read(self.directory / names.LEDGER)
        before, sent = _last(entries, RECEIVED), _last(entries, SENT)
        if before is None or (before.body["round"], before.body["sha256"]) != (done - 1, digest):
            return False
        return sent is None or sent.body["sha256"] != digest  # a round of lost steps has sent what it received

    def _weights_after(self, number: int) -> dict[str, Tensor]:
        """The weights after a round, as the ledger names them."""
        if self._unsent is not None and self._unsent[0] == number:
            weights, self._unsent = self._unsent[1], None
            return weights
        self._settle()
        if self._steps.is_finished:
            weights = dict(read_safetensors(self.directory / names.MODEL)[0])
        else:
            weights = Checkpoint.load(self._path).model
        sent = _last(read(self.directory / names.LEDGER), SENT, number)
        if sent is None or sent.body["sha256"] != pins.weights_digest(weights):
            raise SfumatoError(
                f"the weights after round {number + 1} of {self.rounds} are no longer there",
                "ask for them before the next round begins",
            )
        return weights

    def _settle(self) -> None:
        """Does what an interruption has left out of the end of the last finished round."""
        if self._steps.is_finished or not (done := self.completed):
            return
        if done == self.rounds or self._recorded_sent(read(self.directory / names.LEDGER)) < done - 1:
            with self._steps._open_ledger() as ledger:
                self._end(ledger, done - 1, self._steps._restore(ledger).model)

    @staticmethod
    def _recorded_sent(entries: Any) -> int:
        """The number of the last round whose weights the ledger names as sent, -1 before the first."""
        before = _last(entries, SENT)
        return -1 if before is None else before.body["round"]

    def _fitting(self, weights: Mapping[str, Any]) -> dict[str, Tensor]:
        """The weights as tensors on the CPU, in the model's order. Refuses those that do not fit the model."""
        own = self._steps.model.state_dict()
        if not isinstance(weights, Mapping):
            raise SfumatoError(
                f"the received weights must be a dict of tensors or arrays, got {type(weights).__name__}",
                "give the entries of the model's state_dict()",
            )
        odd = {"missing": own.keys() - weights.keys(), "unknown": weights.keys() - own.keys()}
        if said := [
            f"{what} entries: {len(keys)} (such as {min(map(str, keys))})" for what, keys in odd.items() if keys
        ]:
            raise SfumatoError(
                f"the received weights do not fit the model, {', '.join(said)}",
                "send exactly the entries of the model's state_dict()",
            )
        found: dict[str, Tensor] = {}
        for name, like in own.items():
            try:
                value = torch.as_tensor(weights[name]).detach().cpu()
                if (kind := undense(value)) is not None:
                    raise TypeError(kind)
            except (TypeError, ValueError, RuntimeError) as error:
                raise SfumatoError(
                    f"the received weights do not fit the model: {name} is no dense tensor ({error})",
                    "send tensors or arrays, such as the entries of the model's state_dict()",
                ) from None
            if (value.shape, value.dtype) != (like.shape, like.dtype):
                raise SfumatoError(
                    f"the received weights do not fit the model: {name} is {value.dtype} {tuple(value.shape)}, the "
                    f"model's {like.dtype} {tuple(like.shape)}",
                    "send the weights of the same model, in the same precision",
                )
            if not _is_finite(value):
                raise SfumatoError(
                    f"the received weights have values in {name} that are not finite",
                    "find the site that sent them, and leave it out of the average",
                )
            found[name] = value.clone()
        return found


def _is_finite(value: Tensor) -> bool:
    """Whether all values are finite; by the smallest and the largest, which takes a tenth of the time and no memory."""
    if value.is_complex():
        value = torch.view_as_real(value)
    return not value.numel() or all(bool(one.isfinite()) for one in value.aminmax())


def _last(entries: Any, kind: str, number: int | None = None) -> Entry | None:
    """The last entry of a kind, or of a kind and round."""
    found = (entry for entry in reversed(entries) if entry.kind == kind and number in (None, entry.body["round"]))
    return next(found, None)


def private_rounds(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    data: Any,
    loss: Loss | None = None,
    *,
    rounds: int,
    **arguments: Any,
) -> PrivateRounds:
    """One site's training in a federation: private steps between two exchanges of weights, under one plan.

    The same call resumes an interrupted run, also in another process: between two rounds and within one.

    >>> import tempfile, torch
    >>> model = torch.nn.Linear(4, 2)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> data = torch.randn(200, 4), torch.arange(200) % 2
    >>> run = private_rounds(
    ...     model, optimizer, data, rounds=2, steps=6, epsilon=3.0, batch_size=50, public=True,
    ...     directory=tempfile.mkdtemp(),
    ... )
    >>> weights = model.state_dict()
    >>> for turn in run:
    ...     turn.receive(weights)
    ...     for step in turn:
    ...         pass
    ...     weights = turn.weights()  # a server would average them with those of other sites
    >>> run.completed, run.statement.epsilon <= 3.0
    (2, True)

    Args:
        model, optimizer, data, loss: as for `private_steps`. The optimizer's state, such as its momentum, stays with
            the site from round to round.
        rounds: R, the number of rounds. Each takes the same number of steps.
        arguments: the further arguments of `private_steps`. `steps` (or `epochs`) are those of all rounds together.
            Without them, a plan and a noise multiplier, each round takes one step, or as many as make at least 60.

    **Guarantee.** All weights that the site sends in all rounds, together with those after every step, have the plan's
    (epsilon, delta) for each single example of this site, against everybody who sees them: the server, the other sites,
    and whoever controls the weights that come in. Each step is private for any weights that it starts from, so what
    comes in may depend on all that went out before (adaptive composition). Weights may be chosen to make rounding
    errors large, and with standard noise those of one example depend on the others of its batch: against such weights
    give `noise="secure"`, which computes one example at a time. The ledger names by its SHA-256 what came in
    and what went out.

    Errors: `SfumatoError` before any budget is spent.
    """
    positive_integer(rounds=rounds)
    if all(arguments.get(name) is None for name in ("plan", "steps", "epochs", "noise_multiplier")):
        arguments["steps"] = rounds * -(-STEPS_FULL_BATCH // rounds)
    steps = private_steps(model, optimizer, data, loss, rounds=rounds, **arguments)
    return PrivateRounds(steps, rounds)
