"""Beside LitServe and TorchServe: python benchmarks/speed/serving_others.py [SECONDS] [ROUNDS]

The LeNet of serving.py behind three servers with the same reading of files, one worker and one thread of torch,
loaded one after the other by the same client: JSON with one PNG file in base64 from 64 connections, and with 32 from
4. The others form batches of at most 64 requests that wait 2 ms; ours answers one request at a time. Needs `pip
install litserve torchserve torch-model-archiver`, and Java for TorchServe. Medians over the rounds, in which the
servers take turns, one at a time, and are started anew. Writes results/serving_others.json.
"""

from __future__ import annotations

import asyncio
import base64
import importlib.metadata
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

from benchmarks import RESULTS
from benchmarks.shared import measuring
from benchmarks.shared.http_load import load, pictures, request
from benchmarks.speed.serving import BATCH, loaded

LOADS = ((64, 1), (4, 32))  # connections, images in each request
MODEL = "lenet5"
WAIT = 0.002
IMPORT = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from benchmarks.speed.serving_others import BATCH, WAIT, Model
"""
TORCHSERVE = f"""{IMPORT}
model = None
def handle(data, context):
    global model
    model = model or Model()
    return [] if data is None else model.answers([one.get("body") or one.get("data") for one in data])
"""
QUIET = """<Configuration><Appenders><Console name="out"/></Appenders>
<Loggers><Root level="error"><AppenderRef ref="out"/></Root></Loggers></Configuration>
"""
LITSERVE = f"""{IMPORT}
import litserve
class Api(litserve.LitAPI):
    def setup(self, device):
        self.model = Model()
    def decode_request(self, request):
        return self.model.read(request)
    def batch(self, inputs):
        return inputs
    def predict(self, inputs):
        return self.model.scores(inputs)
    def unbatch(self, rows):
        return rows
    def encode_response(self, rows):
        return {{"scores": rows.tolist()}}
if __name__ == "__main__":
    server = litserve.LitServer(Api(max_batch_size=BATCH, batch_timeout=WAIT), accelerator="cpu")
    server.run(host="127.0.0.1", port=sys.argv[1], num_api_servers=1, generate_client_file=False, log_level="error")
"""


class Model:
    """What LitServe and TorchServe are given: from JSON bodies to the scores of their images."""

    def __init__(self):
        torch.set_num_threads(1)
        self.loaded = loaded(MODEL)

    def read(self, body: dict[str, Any]) -> torch.Tensor:
        """The images of one request."""
        read = self.loaded.transform.read
        return torch.stack([read(base64.b64decode(one, validate=True)) for one in body["images"]])

    def scores(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """Of each request, in chunks of a batch."""
        with torch.inference_mode():
            rows = [self.loaded.reading.scores(self.loaded.module(one)) for one in torch.cat(inputs).split(BATCH)]
        return list(torch.cat(rows).split([len(one) for one in inputs]))

    def answers(self, bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """All of it."""
        return [{"scores": rows.tolist()} for rows in self.scores([self.read(body) for body in bodies])]


def main(seconds: float, rounds: int) -> None:
    names = ("sfumato", "litserve", "torchserve")
    about = {"machine": measuring.machine("cpu"), "seconds": seconds, "rounds": rounds, "batch": BATCH}
    about["versions"] = {name: importlib.metadata.version(name) for name in names[1:]}
    found: dict[str, Any] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            for name in names:
                found[name].append(measured(STARTS[name], Path(folder), seconds))
    rows = {
        name: [
            {"connections": connections, "images": images}
            | {what: statistics.median(one[place][what] for one in rounds_of) for what in rounds_of[0][place]}
            for place, (connections, images) in enumerate(LOADS)
        ]
        for name, rounds_of in found.items()
    }
    print(json.dumps(rows, indent=1))
    (RESULTS / "serving_others.json").write_text(json.dumps(about | {"servers": rows}, indent=1) + "\n")


def measured(start: Callable[[Path, int], list[str]], folder: Path, seconds: float) -> list[dict[str, float]]:
    """What one server does, from its start to its end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = free.getsockname()
    path = "/predictions/model" if start is STARTS["torchserve"] else "/predict"
    process = subprocess.Popen(
        start(folder, place[1]),
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        files = pictures(28, max(images for _, images in LOADS))
        answered(place, request(files[:1], "json", path))
        return [
            asyncio.run(
                load(place, request(files[:images], "json", path), connections=count, images=images, seconds=seconds)
            )
            for count, images in LOADS
        ]
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


def answered(place: tuple[str, int], content: bytes) -> None:
    """Wait until the server answers, for as many as two minutes."""
    until = time.monotonic() + 120
    while time.monotonic() < until:
        try:
            asyncio.run(asyncio.wait_for(load(place, content, connections=1, images=1, seconds=0.5), 20))
            return
        except (OSError, AssertionError, asyncio.IncompleteReadError, statistics.StatisticsError, TimeoutError):
            time.sleep(0.5)
    raise SystemExit("the server does not start")


def own(folder: Path, port: int) -> list[str]:
    """sfumato's."""
    return [sys.executable, __file__, "sfumato", str(port)]


def litserve(folder: Path, port: int) -> list[str]:
    """LitServe's, one worker."""
    (folder / "api.py").write_text(LITSERVE)
    return [sys.executable, "api.py", str(port)]


def torchserve(folder: Path, port: int) -> list[str]:
    """TorchServe's: an archive with a handler, one worker."""
    if not (folder / "model.mar").exists():
        (folder / "handler.py").write_text(TORCHSERVE)
        archive = ["torch-model-archiver", "--model-name", "model", "--version", "1", "--handler", "handler.py"]
        subprocess.run([*archive, "--export-path", "."], cwd=folder, check=True)
    batches = {"minWorkers": 1, "maxWorkers": 1, "batchSize": BATCH, "maxBatchDelay": 2, "responseTimeout": 60}
    lines = {
        "inference_address": f"http://127.0.0.1:{port}",
        "management_address": f"http://127.0.0.1:{port + 1}",
        "metrics_address": f"http://127.0.0.1:{port + 2}",
        "default_workers_per_model": 1,
        "load_models": "model.mar",
        "model_store": str(folder),
        "disable_token_authorization": "true",
        "models": json.dumps({"model": {"1": {"defaultVersion": True, "marName": "model.mar", **batches}}}),
    }
    (folder / "config.properties").write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    (folder / "log4j2.xml").write_text(QUIET)
    return ["torchserve", "--foreground", "--ncs", "--ts-config", "config.properties", "--log-config", "log4j2.xml"]


STARTS = {"sfumato": own, "litserve": litserve, "torchserve": torchserve}


def run(port: int) -> None:
    """sfumato's server in this process, until it is ended."""
    from sfumato.serving import Service
    from sfumato.serving.server import open_listener, serve, server

    torch.set_num_threads(1)
    serve(server(Service(loaded(MODEL))), open_listener("127.0.0.1", port))


if __name__ == "__main__":
    if sys.argv[1:2] == ["sfumato"]:
        run(int(sys.argv[2]))
    else:
        main(float(sys.argv[1]) if len(sys.argv) > 1 else 5, int(sys.argv[2]) if len(sys.argv) > 2 else 3)
