"""Private steps within a Trainer of Lightning: python examples/lightning_module.py (pip install lightning)

Lightning keeps what is around the steps (callbacks, loggers, progress), by its manual optimization: `training_step`
takes the next private step, and nothing calls `backward`. Who takes part in a step, the clipped sum, the noise and the
ledger are sfumato's, and so is going on after an interruption: the same call takes what is left to take.
"""

from __future__ import annotations

from pathlib import Path

import lightning
import torch
from torch import Tensor, nn

import sfumato


class PrivateModule(lightning.LightningModule):
    """A model that is trained by private steps.

    Args:
        model, data, plan: as `sfumato.private_steps` takes them; `plan` holds epsilon, batch size, steps and directory.
    """

    def __init__(self, model: nn.Module, data, **plan):
        super().__init__()
        self.automatic_optimization = False
        self.model, self.data, self.plan = model, data, plan

    def configure_optimizers(self):
        """The optimizer that each private step moves, and a schedule that goes on with it."""
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 20, 0.5)]

    def train_dataloader(self):
        """As many rounds as there are steps, and no records: the plan decides who takes part in each."""
        (optimizer,), (schedule,) = self.trainer.optimizers, self.trainer.lr_scheduler_configs
        self.run = sfumato.private_steps(self.model, optimizer, self.data, with_state=[schedule.scheduler], **self.plan)
        self.steps = iter(self.run)
        return range(len(self.run))

    def training_step(self, batch: int, index: int) -> None:
        """Take the next private step; what is logged are released values."""
        step = next(self.steps, None)
        if step is None:  # a run that went on has fewer left
            self.trainer.should_stop = True
            return
        self.lr_schedulers().step()
        self.log("learning_rate", self.lr_schedulers().get_last_lr()[0], prog_bar=True)
        if step.last:
            next(self.steps, None)  # concludes the run: model file, statement, the ledger's last line

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits (N, classes) of images."""
        return self.model(inputs)


def main(directory: str | Path = "lightning-run", steps: int = 60) -> tuple[float, float]:
    """Train within epsilon 3. Returns epsilon and the accuracy on the test part."""
    source = sfumato.open_source("digits", owner_key=sfumato.owner_key())
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, len(source.classes)))
    module = PrivateModule(model, source, epsilon=3.0, batch_size=400, steps=steps, directory=directory)
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    trainer.fit(module)

    transform = sfumato.Transform(size=source.size, channels=source.channels)
    with torch.inference_mode():
        found = module(transform(source.test.images)).argmax(1)
    accuracy = (found == torch.from_numpy(source.test.labels)).double().mean().item()
    print(f"{accuracy:.1%} of the test images right; {module.run.statement.short}")
    return module.run.statement.epsilon, accuracy


if __name__ == "__main__":
    main()
