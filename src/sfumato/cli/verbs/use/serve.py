"""sfumato serve: a finished run's model behind HTTP."""

from __future__ import annotations

from dataclasses import dataclass

from sfumato._checks import positive_integer
from sfumato.cli.options.choices import OfModel
from sfumato.cli.options.spellings import Path, Whole
from sfumato.cli.output import console


@dataclass(frozen=True, kw_only=True)
class Serve(OfModel):
    """Serve a finished run's model: a page to drop an image on, and JSON (POST /predict, or /embed).

    Runs until it is interrupted (SIGINT, SIGTERM), and then answers what it was asked before. Nothing that is sent is
    kept or logged. The model file alone is enough, and shows less than the run directory.
    """

    host: str = "127.0.0.1"
    """The address to listen on; 0.0.0.0 for all of this machine."""
    port: int = 8000
    """The port; 0 for any that is free."""
    api_key_file: Path = None
    """A file with a key, which nobody else may read: requests must bring it."""
    max_body: float = 10
    """Megabytes that a request has at most."""
    timeout: float = 30
    """Seconds that a request may take to arrive, and to be answered."""
    batch: int = 64
    """Records that go through the model together, at most."""
    wait: float = 2
    """Milliseconds that a batch waits for more records."""
    queue: int = 512
    """Records that wait at most; further requests are told to come again."""
    threads: Whole = None
    """CPU threads of the model."""

    def run(self) -> None:
        """Serve, and say where."""
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
        from sfumato.serving.server import address, listening, serve, server
        from sfumato.serving.service import Service, is_local
        from sfumato.training.preparation.prepare import default_threads

        torch.set_num_threads(self.threads or default_threads())
        local = is_local(self.host)
        service = Service(load(self.run_directory, model=self.model), limits=limits, key=key, local=local)
        ready = server(service)
        listener = listening(self.host, self.port)
        url = address(listener)
        if self.json:
            console.as_json({"url": url, "key": key is not None})
        else:
            console.result(url)
        if key is None and not local:
            console.note("note: whoever reaches this address may ask; --api-key-file PATH has them bring a key")
        serve(ready, listener)
