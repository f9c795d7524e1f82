"""sfumato export and sfumato serve: make a finished run's model usable for others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sfumato.cli.options.run_options import ModelOptions, ThreadsOption
from sfumato.cli.output import console
from sfumato.cli.output.console import Note
from sfumato.cli.parser import option


@dataclass(frozen=True, kw_only=True)
class Export(ModelOptions):
    """Export a finished run's model for use without sfumato.

    Writes a folder with the model, preprocessing.json (classes, statement, and the processing of images before and
    within the model) and a model card. The export is refused if its outputs on synthetic records differ from the run's
    by more than 1e-5.
    """

    to: Literal["onnx", "torch-export"] = "onnx"
    """The format."""
    output: str | None = option("PATH")
    """Output folder. (default: export-TO in the run directory, NAME-TO beside a model file)"""

    def run(self) -> None:
        """Write the model and print its path."""
        from sfumato.exporting.formats import refuse_missing

        refuse_missing(self.to)  # before slow imports
        from sfumato.exporting import export

        written = export(self.run_directory, self.to, output=self.output, model=self.model)
        console.show(
            {
                "to": self.to,
                "export": str(written.path),
                "files": list(written.files),
                "difference": written.difference,
            },
            f"{written.path}   {', '.join(written.files)}",
            Note(
                f"outputs differ from the run's by {written.difference:.0e} on synthetic records: {written.files[-1]}"
            ),
            json=self.json,
        )


@dataclass(frozen=True, kw_only=True)
class Serve(ModelOptions, ThreadsOption):
    """Serve a finished run's model over HTTP: a web page and JSON (POST /predict, or /embed).

    Runs until it is interrupted (SIGINT, SIGTERM), and then answers the pending requests. Nothing that is sent is
    stored or logged. The model file alone is sufficient, and reveals less than the run directory.
    """

    host: str = "127.0.0.1"
    """Address to listen on. 0.0.0.0 means all interfaces."""
    port: int = 8000
    """Port to listen on. 0 means any free port."""
    api_key_file: str | None = option("PATH")
    """File with a key that requests must send, readable only by its owner. (default: no key is needed)"""
    max_body: float = 10
    """Largest request in megabytes. At most sixteen are in memory at once."""
    timeout: float = 30
    """Seconds to receive a request, and to answer it."""
    queue: int = 512
    """Largest number of requests at once. Further ones are refused with 503."""

    def run(self) -> None:
        """Print the address, and serve."""
        from sfumato.serving.bodies import Limits
        from sfumato.serving.service import ApiKey

        limits = Limits(megabytes=self.max_body, seconds=self.timeout, queue=self.queue)
        key = None if self.api_key_file is None else ApiKey(self.api_key_file)
        from sfumato.runs import load
        from sfumato.serving.server import address, open_listener, serve, server
        from sfumato.serving.service import Service, is_local

        self.set_threads()
        local = is_local(self.host)
        service = Service(load(self.run_directory, model=self.model), limits=limits, key=key, local=local)
        ready = server(service)
        listener = open_listener(self.host, self.port)
        url = address(listener)
        console.show({"url": url, "key": key is not None}, url, json=self.json)
        if key is None and not local:
            console.note("note: anyone who reaches this address can send requests; --api-key-file PATH requires a key")
        serve(ready, listener)
