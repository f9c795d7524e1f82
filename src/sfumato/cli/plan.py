"""sfumato plan: one unknown from the others."""

from __future__ import annotations

from dataclasses import dataclass

from sfumato.cli import console
from sfumato.cli.options import Delta, Number, UnclearError, Whole


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Find one of noise multiplier, steps, batch size and epsilon from the others. Looks at no data.

    Give three of the four, with --examples. For instance:
    sfumato plan --examples 50000 --batch-size 4096 --steps 2500 --epsilon 8
    """

    examples: Whole = None
    """N, the number of training examples."""
    batch_size: Whole = None
    """Expected number of examples in a step; as many as --examples means full-batch steps."""
    steps: Whole = None
    """Number of training steps."""
    noise_multiplier: Number = None
    """Standard deviation of the noise over the clipping norm."""
    epsilon: Number = None
    """The privacy budget."""
    delta: Delta = None
    """The chance at which the bound may fail."""
    max_norm: float = 1.0
    """The clipping norm; it does not change epsilon."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        """Solve and print."""
        from sfumato._checks import positive_integer
        from sfumato.privacy import PrivacyPlan
        from sfumato.privacy.plan import default_delta
        from sfumato.privacy.remarks import above_one_record, weak_signal

        if self.examples is None:
            raise UnclearError(
                "--examples is missing", "give the number of training examples, such as --examples 50000"
            )
        positive_integer("examples", self.examples)
        four = ("batch_size", "steps", "noise_multiplier", "epsilon")
        given = [f"--{name.replace('_', '-')}" for name in four if getattr(self, name) is not None]
        if len(given) != 3:
            raise UnclearError(
                "three of --batch-size, --steps, --noise-multiplier and --epsilon are needed, got "
                f"{', '.join(given) or 'none'}",
                "leave out only the one that should follow from the others",
            )
        plan = PrivacyPlan.calibrate(
            examples=self.examples,
            delta=default_delta(self.examples) if self.delta is None else self.delta,
            batch_size=self.batch_size,
            steps=self.steps,
            noise_multiplier=self.noise_multiplier,
            epsilon=self.epsilon,
            max_norm=self.max_norm,
        )
        figures = {
            "epsilon": plan.epsilon(),
            "epsilon_rdp": plan.epsilon(accountant="rdp"),
            "delta": plan.delta,
            "noise_multiplier": plan.noise_multiplier,
            "steps": plan.steps,
            "batch_size": plan.expected_batch_size,
            "examples": plan.population,
            "sampling": type(plan.participation).__name__,
            "sampling_probability": plan.sampling_probability,
            "expected_epochs": plan.expected_epochs,
            "max_norm": plan.max_norm,
            "accountant": plan.theorem.tight,
            "theorem": plan.theorem.name,
            "fingerprint": plan.fingerprint,
        }
        large, weak = above_one_record(plan), weak_signal(plan, 2)
        if large is not None:
            console.note(f"note: {large}")
        if weak is not None:
            console.note(f"note: even {weak}")
        if self.json:
            console.as_json(figures)
            return 0
        console.columns(
            [
                ("epsilon", f"{figures['epsilon']:.4f}  by {plan.theorem.tight}"),
                ("", f"{figures['epsilon_rdp']:.4f}  by Renyi DP, for comparison with papers"),
                ("delta", f"{plan.delta:g}"),
                ("noise multiplier", f"{plan.noise_multiplier:g}"),
                ("steps", f"{plan.steps}"),
                ("expected batch size", f"{plan.expected_batch_size} of {plan.population} examples"),
                ("sampling", f"{figures['sampling']}, probability {plan.sampling_probability:.6g}"),
                ("expected epochs", f"{plan.expected_epochs:.4g}"),
                ("theorem", plan.theorem.name),
                ("plan", plan.fingerprint[:16]),
            ]
        )
        console.note(
            f"next: sfumato train SOURCE --batch-size {plan.expected_batch_size} --steps {plan.steps} "
            f"--noise-multiplier {plan.noise_multiplier!r} --delta {plan.delta!r}"
        )
        return 0
