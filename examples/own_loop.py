"""A private training loop of one's own, from sfumato's pieces: python examples/own_loop.py

The plan decides everything that epsilon depends on; sampler, clipped gradient and noise take it from there. What the
caller has to see to: the run is on the owner's list of uses, only the noisy sum leaves a step, it is divided by public
constants, every step is taken once, and the run key is thrown away at the end (here it is never written down).
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

import sfumato


class Columns(nn.Module):
    """Reads an image column by column: images (B, 1, 8, 8) to logits (B, 10). A bare parameter is no obstacle."""

    def __init__(self, width: int = 64):
        super().__init__()
        self.position = nn.Parameter(0.02 * torch.randn(8, width))
        self.column = nn.Linear(8, width)
        self.head = nn.Linear(8 * width, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, 10)."""
        return self.head(torch.tanh(self.column(images.squeeze(1).mT) + self.position).flatten(1))


def main(steps: int = 150, ledger_path: str | Path = "own-loop.jsonl") -> tuple[float, float]:
    """Train on the digits. Returns (epsilon, test accuracy)."""
    source = sfumato.open_source("digits", owner_key=sfumato.owner_key())
    transform = sfumato.Transform(size=source.size, channels=source.channels)
    images, labels = transform(source.train.images), torch.from_numpy(source.train.labels)

    plan = sfumato.PrivacyPlan.calibrate(examples=source.examples, batch_size=512, steps=steps, epsilon=3.0, delta=1e-5)
    model = Columns()
    gradient = sfumato.ClippedGradient(model, functional.cross_entropy, max_norm=plan.max_norm)
    gradient.self_check((source.channels, source.size, source.size))
    key = sfumato.RunKey.fresh()
    sampler = sfumato.Sampler(plan, key, records=len(labels))
    noise = sfumato.Noise(plan.mechanism, max_norm=plan.max_norm, key=key)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)

    with sfumato.Ledger(ledger_path) as ledger:
        if ledger.entries:
            raise SystemExit(f"{ledger_path} records an earlier run; give another name: what both cost adds up")
        use = sfumato.record_use(source, plan)  # counts with all other runs on these data; not needed for public ones
        if use.note:
            print(use.note)
        ledger.append("begin", {"plan": plan.to_dict()})
        for step in range(plan.steps):
            ledger.append("release", {"step": step, "plan": plan.fingerprint})  # before it is computed
            rows = torch.from_numpy(sampler.draw(step))  # of any number; none is a step too
            total = gradient(images[rows], labels[rows]).gradients
            for name, noisy in noise.add(total, step).items():
                model.get_parameter(name).grad = noisy / (plan.expected_batch_size * plan.max_norm)
            optimizer.step()

    with torch.inference_mode():
        chosen = model(transform(source.test.images)).argmax(1)
    accuracy = (chosen == torch.from_numpy(source.test.labels)).double().mean().item()
    print(f"epsilon {plan.epsilon():.3f} at delta {plan.delta:g}, test accuracy {accuracy:.1%}")
    return plan.epsilon(), accuracy


if __name__ == "__main__":
    main()
