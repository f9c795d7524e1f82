"""Answers of a server over the bare batched forward: python benchmarks/speed/serving.py [SECONDS] [ROUNDS]

A LeNet of 28 x 28 and a ViT-Tiny of 224 x 224, untrained, on the CPU with one thread. Bare: the module on inputs
of 64 that lie in memory; read: the same from PNG files, which are decoded (`predict`). Served: the server of
`sfumato serve` in a process of its own, from another one by keep-alive connections: one PNG file in each request from
64 connections, forms of 32 files from 4, and arrays of 64 images, answered by arrays, from 4. Bare and served take
turns, so that what else runs on the machine is the same for both; medians over the rounds. Images a second, the middle
and the 99th of 100 times of a request, and the memory that the server took more; then 20 bodies of 100 MB at once, and
its peak. Client and server share the machine's cores. Writes results/serving.json.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import statistics
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

from benchmarks import RESULTS
from benchmarks.shared import measuring
from benchmarks.shared.http_load import load, pictures, request
from sfumato import models
from sfumato.data import Transform
from sfumato.privacy import NoPromise
from sfumato.runs import Loaded

MODELS = {"lenet5": 28, "timm:vit_tiny_patch16_224": 224}
BATCH = 64
LOADS = (("png", 64, 1), ("form", 4, 32), ("npy", 4, 64))  # form, connections, images in each request


def main(seconds: float, rounds: int) -> None:
    torch.set_num_threads(1)
    about = {"machine": measuring.machine("cpu"), "seconds": seconds, "rounds": rounds, "batch": BATCH}
    found: dict[str, Any] = about | {"models": {}}
    for name in MODELS:
        row = found["models"][name] = measured(name, seconds, rounds)
        print(name, json.dumps(row), flush=True)
        (RESULTS / "serving.json").write_text(json.dumps(found, indent=1) + "\n")


def loaded(name: str) -> Loaded:
    """The model, as a run's would be loaded."""
    size, classes = MODELS[name], tuple(map(str, range(10)))
    torch.manual_seed(0)
    module = models.create(name, classes=10, channels=3, size=size).eval()
    return Loaded(
        module=module, transform=Transform(size=size, channels=3), classes=classes, statement=NoPromise(published=False)
    )


def measured(name: str, seconds: float, rounds: int) -> dict[str, Any]:
    """Rates bare and read, those of a server by each load, and its memory."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=served, args=(name, there))
    process.start()
    place, files, model = here.recv(), pictures(MODELS[name], BATCH), loaded(name)
    known = psutil.Process(process.pid)
    before = known.memory_info().rss
    inputs = torch.stack([model.transform.read(one) for one in files])

    def forward() -> None:
        with torch.inference_mode():
            model.module(inputs)

    bare: list[float] = []
    read: list[float] = []
    answers: dict[Any, list[dict[str, float]]] = {one: [] for one in LOADS}
    for _ in range(rounds):
        read.append(rate(lambda: model.predict(files, batch=BATCH), seconds))
        for (form, connections, images), answer in answers.items():
            bare.append(rate(forward, seconds))
            content = request(files[:images], form)
            answer.append(asyncio.run(load(place, content, connections=connections, images=images, seconds=seconds)))
    row: dict[str, Any] = {
        "bare_images_per_second": statistics.median(bare),
        "read_images_per_second": statistics.median(read),
        "loads": [
            {"form": form, "connections": connections, "images": images}
            | {what: statistics.median(one[what] for one in answer) for what in answer[0]}
            for (form, connections, images), answer in answers.items()
        ],
        "more_bytes": known.memory_info().rss - before,
    }
    before = known.memory_info().rss
    statuses, peak = asyncio.run(flood(place, 20, known))
    row["flood"] = {"bodies": 20, "megabytes": 100, "statuses": statuses, "more_bytes": peak - before}
    here.send("end")
    process.join()
    return row


def rate(step: Any, seconds: float) -> float:
    """Images a second of a step of one batch, by the median of its times."""
    times, until = [], time.perf_counter() + seconds
    while time.perf_counter() < until:
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    return BATCH / statistics.median(times)


def served(name: str, pipe: Connection) -> None:
    """The server's process."""
    import threading

    from sfumato.serving import Service
    from sfumato.serving.server import listening, serve, server

    torch.set_num_threads(1)
    ready, listener = server(Service(loaded(name))), listening("127.0.0.1", 0)
    pipe.send(listener.getsockname())
    threading.Thread(target=lambda: (pipe.recv(), setattr(ready, "should_exit", True)), daemon=True).start()
    serve(ready, listener)


async def flood(place: tuple[str, int], bodies: int, server: psutil.Process) -> tuple[dict[str, int], int]:
    """What so many bodies of 100 MB are answered, and the server's memory at its peak."""
    statuses: dict[str, int] = {}
    peak, piece = 0, bytes(1_000_000)

    async def client() -> None:
        nonlocal peak
        reader, writer = await asyncio.open_connection(*place)
        status = "cut off"
        try:
            writer.write(
                b"POST /predict HTTP/1.1\r\nhost: a\r\ncontent-type: image/png\r\ntransfer-encoding: chunked\r\n\r\n"
            )
            for _ in range(100):
                writer.write(b"%x\r\n" % len(piece) + piece + b"\r\n")
                await writer.drain()
                peak = max(peak, server.memory_info().rss)
            writer.write(b"0\r\n\r\n")
            status = (await reader.readline()).split()[1].decode()
        except (OSError, IndexError):
            pass
        statuses[status] = statuses.get(status, 0) + 1
        writer.close()

    await asyncio.gather(*(client() for _ in range(bodies)))
    return statuses, peak


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 4, int(sys.argv[2]) if len(sys.argv) > 2 else 5)
