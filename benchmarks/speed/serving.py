"""A server's answers beside the bare forward: python benchmarks/speed/serving.py [SECONDS] [ROUNDS] [MODEL]

A LeNet of 28 x 28 and a ViT-Tiny of 224 x 224, untrained, on the CPU with one thread. The server of `sfumato serve`,
in a process of its own, answers one request at a time; the records of a request pass through the model in batches of
at most 64. Another process loads it over keep-alive connections: requests of one PNG file from 1 and from 64
connections, forms of 32 files from 4, and arrays of 64 images, answered by arrays, from 4. Bare: the module alone, on
as many inputs at a time as a request of that load has. Bare and served take turns, so that what else runs on the
machine is the same for both; medians over the rounds. For each load: images a second, the middle and the 99th of 100
times of a request, and the processor's time for an image, bare and of the server (its HTTP and all), which says most
where the machine is busy. Then 20 bodies of 100 MB at once, and the server's memory at its peak. Client and server
share the machine's cores. Writes results/serving.json, or one model's part of it.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Sequence
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
from sfumato.privacy import NoGuarantee
from sfumato.runs import Loaded
from sfumato.runs.loaded import Reading

MODELS = {"lenet5": 28, "timm:vit_tiny_patch16_224": 224}
BATCH = 64
LOADS = (("png", 1, 1), ("png", 64, 1), ("form", 4, 32), ("npy", 4, 64))  # form, connections, images in each request


def main(seconds: float, rounds: int, *names: str) -> None:
    torch.set_num_threads(1)
    path = RESULTS / "serving.json"
    found: dict[str, Any] = json.loads(path.read_text()) if names else {"models": {}}
    found |= {"machine": measuring.machine("cpu"), "batch": BATCH}
    for name in names or MODELS:
        found["models"][name] = {"seconds": seconds, "rounds": rounds} | measured(name, seconds, rounds)
        print(name, json.dumps(found["models"][name]), flush=True)
        path.write_text(json.dumps(found, indent=1) + "\n")


def loaded(name: str) -> Loaded:
    """The model, as a run's would be loaded."""
    size, classes = MODELS[name], tuple(map(str, range(10)))
    torch.manual_seed(0)
    module = models.create(name, classes=10, channels=3, size=size).eval()
    reading = Reading(classes=classes, loss="softmax")
    return Loaded(
        module=module,
        transform=Transform(size=size, channels=3),
        reading=reading,
        statement=NoGuarantee(published=False),
    )


def measured(name: str, seconds: float, rounds: int) -> dict[str, Any]:
    """The figures of each load, and the server's memory."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=served, args=(name, there))
    process.start()
    place, files, model = here.recv(), pictures(MODELS[name], BATCH), loaded(name)
    known = psutil.Process(process.pid)
    before = known.memory_info().rss
    inputs = torch.stack([model.transform.read(one) for one in files])

    def forward(images: int) -> None:
        with torch.inference_mode():
            model.module(inputs[:images])

    found: dict[Any, list[dict[str, float]]] = {one: [] for one in LOADS}
    for _ in range(rounds):
        for (form, connections, images), answers in found.items():
            bare = processor_time(lambda images=images: forward(images), images, seconds)
            content, began = request(files[:images], form), busy(known)
            answer = asyncio.run(load(place, content, connections=connections, images=images, seconds=seconds))
            taken = 1e6 * (busy(known) - began) / answer.pop("images_answered")
            answers.append(answer | {"bare_processor_microseconds": bare, "processor_microseconds": taken})
    row: dict[str, Any] = {
        "loads": [
            {"form": form, "connections": connections, "images": images} | medians(answers)
            for (form, connections, images), answers in found.items()
        ],
        "more_bytes": known.memory_info().rss - before,
    }
    before = known.memory_info().rss
    statuses, peak = asyncio.run(flood(place, 20, known))
    row["flood"] = {"bodies": 20, "megabytes": 100, "statuses": statuses, "more_bytes": peak - before}
    here.send("end")
    process.join()
    return row


def processor_time(step: Callable[[], object], images: int, seconds: float) -> float:
    """Microseconds of the processor for an image, by a step of so many."""
    step()
    began, until, steps = time.process_time(), time.perf_counter() + seconds, 0
    while time.perf_counter() < until:
        step()
        steps += 1
    return 1e6 * (time.process_time() - began) / (images * steps)


def busy(process: psutil.Process) -> float:
    """Seconds of processors that a process has taken."""
    return sum(process.cpu_times()[:2])


def medians(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    """Of each figure the median over the rounds."""
    return {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}


def served(name: str, pipe: Connection) -> None:
    """The server's process."""
    import threading

    from sfumato.serving import Limits, Service
    from sfumato.serving.server import open_listener, serve, server

    torch.set_num_threads(1)
    ready, listener = server(Service(loaded(name), limits=Limits(seconds=600))), open_listener("127.0.0.1", 0)
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
    main(float((sys.argv[1:] or [4])[0]), int((sys.argv[2:] or [5])[0]), *sys.argv[3:])
