"""Private steps within the Trainer of transformers: python examples/hf_trainer.py (pip install transformers accelerate)

The Trainer keeps its callbacks, its schedule and its arguments. `training_step` takes the next private step in place of
a forward and backward pass, so the Trainer sees no private record, and its optimizer finds no gradients to follow. Who
takes part in a step, the clipped sum, the noise and the ledger are sfumato's, and so is going on after an interruption.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

import sfumato


class PrivateTrainer(Trainer):
    """A Trainer of private steps.

    Args:
        train_dataset: as `sfumato.private_steps` takes data: here items with `pixel_values` and `labels`.
        plan: what every step costs.
        directory: the run directory.
    """

    def __init__(self, model: nn.Module, args: TrainingArguments, train_dataset, plan: sfumato.PrivacyPlan, directory):
        if args.gradient_accumulation_steps != 1 or args.fp16 or args.bf16 or args.n_gpu > 1 or args.world_size > 1:
            raise sfumato.SfumatoError(
                "a private step is neither accumulated, nor shared among devices, nor under the Trainer's precision",
                "leave gradient_accumulation_steps, fp16, bf16 out; give private_steps precision='bfloat16'",
            )
        args.max_steps = plan.steps
        super().__init__(model, args, train_dataset=train_dataset)
        self.plan, self.directory = plan, directory

    def get_train_dataloader(self) -> DataLoader:
        """As many rounds as there are steps, and no records: the plan decides who takes part in each."""
        return DataLoader([{"step": step} for step in range(self.plan.steps)], batch_size=1)

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None):
        """The Trainer's own schedule, of the optimizer that each private step moves; then the run begins."""
        schedule = super().create_scheduler(num_training_steps, optimizer)
        self.run = sfumato.private_steps(
            self.model,
            getattr(self.optimizer, "optimizer", self.optimizer),  # accelerate has wrapped it
            self.train_dataset,
            plan=self.plan,
            with_state=[schedule],
            directory=self.directory,
        )
        self.steps = iter(self.run)
        return schedule

    def training_step(self, model: nn.Module, inputs: dict[str, Tensor], num_items_in_batch=None) -> Tensor:
        """Take the next private step. No loss leaves it, so the Trainer is told 0."""
        step = next(self.steps, None)
        if step is None:  # a run that went on has fewer left
            self.control.should_training_stop = True
        elif step.last:
            next(self.steps, None)  # concludes the run: model file, statement, the ledger's last line
        return torch.zeros((), device=self.args.device)


class Digits(torch.utils.data.Dataset):
    """Images and labels by the names that models of transformers have for them."""

    def __init__(self, images: Tensor, labels: Tensor):
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, place: int) -> dict[str, Tensor]:
        return {"pixel_values": self.images[place], "labels": self.labels[place]}


def main(directory: str | Path = "hf-run", steps: int = 60) -> tuple[float, float]:
    """Train within epsilon 3. Returns epsilon and the accuracy on the test part."""
    source = sfumato.open_source("digits", owner_key=sfumato.owner_key())
    transform = sfumato.Transform(size=source.size, channels=source.channels)
    data = Digits(transform(source.train.images), torch.from_numpy(source.train.labels))
    torch.manual_seed(0)
    model = ViTForImageClassification(
        ViTConfig(
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=4,
            intermediate_size=64,
            image_size=source.size,
            patch_size=4,
            num_channels=1,
            num_labels=len(source.classes),
        )
    )
    plan = sfumato.PrivacyPlan.calibrate(examples=len(data), batch_size=400, steps=steps, epsilon=3.0, delta=1e-5)
    with tempfile.TemporaryDirectory() as place:
        arguments = TrainingArguments(
            place,
            learning_rate=0.01,
            lr_scheduler_type="cosine",
            save_strategy="no",  # the run directory is the checkpoint
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        trainer = PrivateTrainer(model, arguments, data, plan, directory)
        trainer.train()

    model.eval()
    with torch.inference_mode():
        found = model(transform(source.test.images)).logits.argmax(1)
    accuracy = (found == torch.from_numpy(source.test.labels)).double().mean().item()
    print(f"{accuracy:.1%} of the test images right; {trainer.run.statement.short}")
    return trainer.run.statement.epsilon, accuracy


if __name__ == "__main__":
    main()
