"""sfumato export and sfumato serve: make a finished run's model usable for others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sfumato._checks import positive_integer
from sfumato.cli.options.choices import ModelOptions
from sfumato.cli.options.spellings import Path, Whole
from sfumato.cli.output import console
from sfumato.cli.output.console import Note


@dataclass(frozen=True, kw_only=True)
class Export(ModelOptions):
    """Write a finished run's model so that it opens without sfumato.

    A folder with the model, preprocessing.json (classes, statement, and what happens to an image before and within the
    model) and a model card. It is written only where its outputs are the run's, to 1e-5, on made-up records.
    """

    to: Literal["onnx", "torch-export", "huggingface", "timm"] = "onnx"
    """ONNX, a program of torch.export, or a folder that timm or transformers opens (for models of theirs)."""
    output: Path = None
    """The folder; or the model's file, by a name that ends in .onnx or .pt2.
    (default: export-TO in the run directory, NAME-TO beside a model file)"""

    def run(self) -> None:
        """Write the model and print its path."""
        from sfumato.exporting import export

        made = export(self.run_directory, self.to, output=self.output, model=self.model)
        console.show(
            {"to": self.to, "export": str(made.path), "files": list(made.files), "difference": made.difference},
            f"{made.path}   {', '.join(made.files)}",
            Note(f"outputs are the run's to {made.difference:.0e} on made-up records; {made.files[-1]} says how"),
            json=self.json,
        )


@dataclass(frozen=True, kw_only=True)
class Serve(ModelOptions):
    """Serve a finished run's model: a page to drop an image on, and JSON (POST /predict, or /embed).

    Runs until it is interrupted (SIGINT, SIGTERM), and then answers what it was asked before. Nothing that is sent is
    kept or logged. The model file alone is enough, and shows less than the run directory.
    """

    host: str = "127.0.0.1"
    """Address to listen on. 0.0.0.0 for all interfaces."""
    port: int = 8000
    """Port to listen on. 0 for any free one."""
    api_key_file: Path = None
    """File with a key that requests must bring, readable by nobody else. (default: no key is needed)"""
    max_body: float = 10
    """Largest request in megabytes. Up to sixteen are held at once."""
    timeout: float = 30
    """Seconds for a request to arrive, and to be answered."""
    batch: int = 64
    """Largest number of records that go through the model together."""
    wait: float = 2
    """Milliseconds that a batch waits for more records."""
    queue: int = 512
    """Largest number of waiting records. Further requests are refused with 503."""
    threads: Whole = None
    """Number of CPU threads of the model. (default: as many as the process may use)"""

    def run(self) -> None:
        """Print the address, and serve."""
        from sfumato.serving.key import ApiKey
        from sfumato.serving.limits import Limits

        limits = Limits(
            megabytes=self.max_body, seconds=self.timeout, batch=self.batch, wait=self.wait / 1000, queue=self.queue
        )
        if self.threads is not None:
            positive_integer("threads", self.threads)
        key = None if self.api_key_file is None else ApiKey(self.api_key_file)
        import torch

        from sfumato.runs import load
        from sfumato.serving.server import address, open_listener, serve, server
        from sfumato.serving.service import Service, is_local
        from sfumato.training.preparation.prepare import default_threads

        torch.set_num_threads(self.threads or default_threads())
        local = is_local(self.host)
        service = Service(load(self.run_directory, model=self.model), limits=limits, key=key, local=local)
        ready = server(service)
        listener = open_listener(self.host, self.port)
        url = address(listener)
        console.show({"url": url, "key": key is not None}, url, json=self.json)
        if key is None and not local:
            console.note("note: whoever reaches this address may ask; --api-key-file PATH has them bring a key")
        serve(ready, listener)
