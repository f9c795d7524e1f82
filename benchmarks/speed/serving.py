"""Answers of a server over the bare batched forward: python benchmarks/speed/serving.py [SECONDS]

A LeNet of 28 x 28 and a ViT-Tiny of 224 x 224, untrained, on the CPU with one thread. Bare: the module on inputs
of 64 that lie in memory; read: the same from PNG files, which are decoded (`predict`). Served: the server of
`sfumato serve` in a process of its own, from another one by keep-alive connections: one image in each request from
64 connections, and 32 images in each from 4. Images a second, the middle and the 99th of 100 times of a request, and
the memory that the server took more; then 20 bodies of 100 MB at once, and its peak. Client and server share the
machine's cores. Writes results/serving.json.
"""

from __future__ import annotations

import asyncio
import io
import json
import multiprocessing
import statistics
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

from benchmarks import RESULTS
from benchmarks.shared import measuring
from sfumato import models
from sfumato.data import Transform
from sfumato.privacy import NoPromise
from sfumato.runs import Loaded

MODELS = {"lenet5": 28, "timm:vit_tiny_patch16_224": 224}
BATCH = 64
LOADS = ((64, 1), (4, 32))  # connections, images in each request


def main(seconds: float) -> None:
    torch.set_num_threads(1)
    found: dict[str, Any] = {"machine": measuring.machine("cpu"), "seconds": seconds, "batch": BATCH, "models": {}}
    for name, size in MODELS.items():
        row = found["models"][name] = bare(loaded(name), pictures(size), seconds)
        with_server(name, size, seconds, row)
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


def pictures(size: int) -> list[bytes]:
    """PNG files of soft colours."""
    draw, files = np.random.default_rng(0), []
    for _ in range(BATCH):
        out = io.BytesIO()
        small = Image.fromarray(draw.integers(0, 256, (7, 7, 3), dtype=np.uint8))
        small.resize((size, size), Image.Resampling.BICUBIC).save(out, "PNG")
        files.append(out.getvalue())
    return files


def bare(model: Loaded, files: list[bytes], seconds: float) -> dict[str, Any]:
    """Images a second of the module alone, and with their files read."""
    inputs = torch.stack([model.transform.read(one) for one in files])

    def forward() -> None:
        with torch.inference_mode():
            model.module(inputs)

    rates = {}
    for what, step in (("bare", forward), ("read", lambda: model.predict(files, batch=BATCH))):
        step()
        times, until = [], time.perf_counter() + seconds
        while time.perf_counter() < until:
            began = time.perf_counter()
            step()
            times.append(time.perf_counter() - began)
        rates[f"{what}_images_per_second"] = BATCH / statistics.median(times)
    return rates


def with_server(name: str, size: int, seconds: float, row: dict[str, Any]) -> None:
    """Add what the server did."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=served, args=(name, there))
    process.start()
    place, files = here.recv(), pictures(size)
    known = psutil.Process(process.pid)
    row["loads"] = []
    for connections, images in LOADS:
        before = known.memory_info().rss
        answer = asyncio.run(load(place, files, connections, images, seconds))
        row["loads"].append({"connections": connections, "images": images, **answer})
        row["loads"][-1]["more_bytes"] = known.memory_info().rss - before
    before = known.memory_info().rss
    statuses, peak = asyncio.run(flood(place, 20, known))
    row["flood"] = {"bodies": 20, "megabytes": 100, "statuses": statuses, "more_bytes": peak - before}
    here.send("end")
    process.join()


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


def request(files: list[bytes]) -> bytes:
    """One image as it is, or several as a form."""
    kind, body = "image/png", files[0]
    if len(files) > 1:
        kind = "multipart/form-data; boundary=sfumato"
        head = b'--sfumato\r\ncontent-disposition: form-data; name="a"; filename="a"\r\n\r\n'
        body = b"".join(head + one + b"\r\n" for one in files) + b"--sfumato--\r\n"
    head = f"POST /predict HTTP/1.1\r\nhost: a\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def load(
    place: tuple[str, int], files: list[bytes], connections: int, images: int, seconds: float
) -> dict[str, Any]:
    """Requests one after the other on each of so many connections."""
    times: list[float] = []
    content, until = request((files * images)[:images]), time.perf_counter() + seconds

    async def client() -> None:
        reader, writer = await asyncio.open_connection(*place)
        while time.perf_counter() < until:
            began = time.perf_counter()
            writer.write(content)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            length = int(head.lower().partition(b"content-length: ")[2].split()[0])
            await reader.readexactly(length)
            times.append(time.perf_counter() - began)
        writer.close()

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(connections)))
    took = time.perf_counter() - began
    ranks = statistics.quantiles(times, n=100)
    return {
        "images_per_second": len(times) * images / took,
        "p50_milliseconds": 1000 * ranks[49],
        "p99_milliseconds": 1000 * ranks[98],
    }


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
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 10)
