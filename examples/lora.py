"""A vision transformer fine-tuned privately by LoRA: python examples/lora.py (pip install transformers peft)

Low-rank adapters (Hu et al. 2021, arXiv 2106.09685) are trained by private steps, and the rest of the model stays as it
is: only what requires a gradient is clipped, gets noise, and moves. In place of downloaded weights the transformer is
first trained for a moment on made-up strokes, and then privately on the digits.
"""

from __future__ import annotations

from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.nn import functional
from transformers import ViTConfig, ViTForImageClassification

import sfumato


def strokes(count: int, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Public images (N, 1, H, W) of bent lines, moved and blurred, and which of 20 shapes each has."""
    corners = 0.8 * (2 * torch.rand(20, 2, 5, generator=torch.Generator().manual_seed(0)) - 1)
    lines = functional.interpolate(corners, 24, mode="linear")  # (20, 2, points)
    shapes = torch.randint(20, (count,), generator=generator)
    places = lines[shapes] + 0.1 * torch.randn(count, 2, 1, generator=generator)
    along = torch.linspace(-1, 1, size)
    far = (places[:, 0, :, None, None] - along) ** 2 + (places[:, 1, :, None, None] - along[:, None]) ** 2
    return 2 * (-far / 0.05).exp().amax(1, keepdim=True) - 1, shapes


def public_transformer(size: int, steps: int) -> nn.Module:
    """A small ViT that has seen public images alone; `from_pretrained` gives a large one where there is a network."""
    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        image_size=size,
        patch_size=2,
        num_channels=1,
        num_labels=20,
    )
    model, generator = ViTForImageClassification(config), torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(steps):
        images, shapes = strokes(64, size, generator)
        optimizer.zero_grad()
        functional.cross_entropy(model(images).logits, shapes).backward()
        optimizer.step()
    return model


def main(directory: str | Path = "lora", steps: int = 60, public_steps: int = 300) -> tuple[float, int]:
    """Train within epsilon 3. Returns the accuracy on the test part, and how many parameters were trained."""
    source = sfumato.open_source("digits", owner_key=sfumato.owner_key())
    public = public_transformer(source.size, public_steps)
    public.classifier = nn.Linear(public.config.hidden_size, len(source.classes))
    nn.init.zeros_(public.classifier.weight)
    adapters = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], modules_to_save=["classifier"])
    model = get_peft_model(public, adapters)

    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.5, momentum=0.9)
    run = sfumato.private_steps(model, optimizer, source, epsilon=3.0, batch_size=400, steps=steps, directory=directory)
    for step in run:
        if step.number % 20 == 0:
            print(step, flush=True)

    transform = sfumato.Transform(size=source.size, channels=source.channels)
    model.eval()
    with torch.inference_mode():
        found = model(transform(source.test.images)).logits.argmax(1)
    accuracy = (found == torch.from_numpy(source.test.labels)).double().mean().item()
    count = sum(parameter.numel() for parameter in trained)
    whole = sum(parameter.numel() for parameter in model.parameters())
    print(f"{accuracy:.1%} of the test images right, {count} of {whole} parameters trained; {run.statement.short}")
    return accuracy, count


if __name__ == "__main__":
    main()
