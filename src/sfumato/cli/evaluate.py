"""sfumato evaluate: how a finished run's model does on a source."""

from __future__ import annotations

from dataclasses import dataclass

from sfumato.cli import console
from sfumato.cli.options import Device, Directory, Path, SourceName, TestShare


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Measure a finished run's model on the test part of a source.

    The figures are not noisy: on private data they are for the owner's eyes.
    """

    run_directory: Directory
    """The run directory."""
    source: SourceName
    """digits, folder:PATH, npz:PATH, csv:PATH or torchvision:NAME."""
    part: str = "test"
    """Which part of the source: test, train, or all of it."""
    root: Path = None
    """Where torchvision's data sets are."""
    download: bool = False
    """Let torchvision download the data set."""
    test_fraction: TestShare = None
    """Share of the test part where a source has none of its own."""
    device: Device = None
    """Where to compute."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        """Measure and print."""
        import numpy as np
        import torch

        from sfumato._checks import one_of
        from sfumato.data import Records, open_source
        from sfumato.randomness import owner_key
        from sfumato.training import evaluate, load
        from sfumato.training.prepare import choose_device

        one_of("--part", self.part, ("test", "train", "all"))
        loaded = load(self.run_directory)
        device = torch.device(choose_device(self.device))
        source = open_source(
            self.source,
            owner_key=owner_key(),
            classes=loaded.classes,
            size=loaded.transform.size,
            channels=loaded.transform.channels,
            root=self.root,
            download=self.download,
            test_fraction=self._test_fraction(),
        )
        records = {"test": source.test, "train": source.train}.get(self.part)
        if records is None:
            both = (source.train, source.test)
            records = Records(
                images=np.concatenate([part.images for part in both]),
                labels=np.concatenate([part.labels for part in both]),
            )
        result = evaluate.evaluation(loaded.module.to(device), records, loaded.transform, device, loaded.classes)
        rows = [
            (name, row[place], sum(row))
            for place, (name, row) in enumerate(zip(loaded.classes, result.confusion, strict=True))
        ]
        shares = {name: right / count for name, right, count in rows if count}
        figures = {
            "accuracy": result.accuracy,
            "top5": result.top5,
            "loss": result.loss,
            "images": result.examples,
            "part": self.part,
            "accuracy_per_class": shares,
            "public": source.public,
        }
        if self.json:
            console.as_json(figures)
            return 0
        console.columns(
            [
                ("accuracy", f"{result.accuracy:.2%} of {result.examples} images ({self.part} part)"),
                *([] if result.top5 is None else [("top five", f"{result.top5:.2%}")]),
                ("loss", f"{result.loss:.4f}"),
                *((f"  {name}", f"{share:.2%}") for name, share in shares.items()),
            ]
        )
        if not source.public:
            console.talk("note: measured on private data without noise; these figures are not covered by the promise")
        return 0

    def _test_fraction(self) -> float:
        """As given, or as the run was trained, so that no training image is counted as a test image."""
        from sfumato.training import directory as names

        run = names.RunDirectory(self.run_directory)
        if self.test_fraction is not None or not run.exists:
            return 0.2 if self.test_fraction is None else self.test_fraction
        return run.read_json(names.SETTINGS)["request"].get("source", {}).get("test_fraction", 0.2)
