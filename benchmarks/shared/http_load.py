"""A client that loads a server over keep-alive connections, and what it sends."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import statistics
import time
from collections.abc import Sequence

import numpy as np
from PIL import Image

ARRAY = "application/x-npy"


def pictures(size: int, count: int) -> list[bytes]:
    """PNG files of soft colours."""
    draw, files = np.random.default_rng(0), []
    for _ in range(count):
        out = io.BytesIO()
        small = Image.fromarray(draw.integers(0, 256, (7, 7, 3), dtype=np.uint8))
        small.resize((size, size), Image.Resampling.BICUBIC).save(out, "PNG")
        files.append(out.getvalue())
    return files


def request(files: Sequence[bytes], form: str, path: str = "/predict") -> bytes:
    """A request with images as a file ("png"), a form, JSON, or an array that is answered by one ("npy")."""
    if form == "png":
        (body,), kind = files, "image/png"
    elif form == "form":
        head = b'--sfumato\r\ncontent-disposition: form-data; name="a"; filename="a"\r\n\r\n'
        body = b"".join(head + one + b"\r\n" for one in files) + b"--sfumato--\r\n"
        kind = "multipart/form-data; boundary=sfumato"
    elif form == "json":
        body = json.dumps({"images": [base64.b64encode(one).decode() for one in files]}).encode()
        kind = "application/json"
    else:
        out = io.BytesIO()
        np.save(out, np.stack([np.asarray(Image.open(io.BytesIO(one)).convert("RGB")) for one in files]))
        body, kind = out.getvalue(), f"{ARRAY}\r\naccept: {ARRAY}"
    head = f"POST {path} HTTP/1.1\r\nhost: a\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def load(
    place: tuple[str, int], content: bytes, *, connections: int, images: int, seconds: float
) -> dict[str, float]:
    """Images a second and in all, and times of a request, where each connection sends one request after the other."""
    times: list[float] = []
    until = time.perf_counter() + seconds

    async def client() -> None:
        reader, writer = await asyncio.open_connection(*place)
        while time.perf_counter() < until:
            began = time.perf_counter()
            writer.write(content)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            assert head.startswith(b"http/1.1 200"), head
            await reader.readexactly(int(head.partition(b"content-length: ")[2].split()[0]))
            times.append(time.perf_counter() - began)
        writer.close()

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(connections)))
    took = time.perf_counter() - began
    ranks = statistics.quantiles(times, n=100)
    return {
        "images_per_second": len(times) * images / took,
        "images_answered": len(times) * images,
        "p50_milliseconds": 1000 * ranks[49],
        "p99_milliseconds": 1000 * ranks[98],
    }
