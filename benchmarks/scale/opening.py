"""What it costs to open a large source: python benchmarks/scale/opening.py WORK [100000 1000000 10000000]

Made-up grey images of 12 x 12 pixels, PNG files of about 220 bytes, in a folder and in Parquet, up to a
million: how long it takes to list and to hash them bare, to list, decode and hash them bare, and to open them as a
source, each in a process of its own, with one thread and with warm files; and how much memory the process takes beyond
what it has once its modules are imported. Images stay where they are stored. Ten million are simulated: a folder's
paths and users' names in all lengths that such have, and neither read nor decoded, so that the figures are those of
everything else: split, codes, digests, fingerprint. Then the draw of a step's participants, by Poisson sampling. Goes
on where it stopped; writes results/opening.json.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import resource
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

from benchmarks import RESULTS

RESULT = RESULTS / "opening.json"
SIDE, CLASSES, SHARD = 12, 10, 100_000
LARGEST = {"folder": 1_000_000, "parquet": 1_000_000, "simulated": 10_000_000}
HOW = ("listed and hashed", "listed, decoded and hashed", "opened")


def main(work: Path, counts: list[int]) -> None:
    found = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    for count in counts:
        for kind, largest in LARGEST.items():
            if count > largest:
                continue
            place = work / f"{kind}-{count}"
            for how in HOW if kind != "simulated" else HOW[2:]:
                key = f"{kind}, {count}, {how}"
                if key not in found:
                    make(place, kind, count)
                    command = [sys.executable, __file__, "--measure", how, kind, str(place)]
                    found[key] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
                    RESULT.write_text(json.dumps(found, indent=1) + "\n")
                print(f"{key:<50}{found[key]['processor']:10.1f} s{found[key]['memory'] / 1e6:10.0f} MB", flush=True)
        key = f"draw, {count}"
        found.setdefault(key, drawn(count))
        RESULT.write_text(json.dumps(found, indent=1) + "\n")
        print(f"{key:<50}{found[key]['seconds']:10.4f} s", flush=True)


def images(start: int, count: int) -> Iterator[bytes]:
    """So many PNG files of random greys."""
    pixels = np.random.default_rng(start).integers(0, 256, (count, SIDE, SIDE + 1), np.uint8)
    pixels[:, :, 0] = 0  # no filter
    header = _chunk(b"IHDR", struct.pack(">IIBBBBB", SIDE, SIDE, 8, 0, 0, 0, 0))
    for image in pixels:
        yield b"\x89PNG\r\n\x1a\n" + header + _chunk(b"IDAT", zlib.compress(image.tobytes(), 1)) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def make(place: Path, kind: str, count: int) -> None:
    """The made-up images, where they do not lie there yet."""
    if kind == "simulated" or (place.parent / f"{place.name}.done").exists():
        return
    for start in range(0, count, SHARD):
        some = images(start, min(SHARD, count - start))
        if kind == "folder":
            for number, image in enumerate(some, start):
                folder = place / f"class-{number % CLASSES}"
                if number < CLASSES:
                    folder.mkdir(parents=True)
                (folder / f"image-{number:08d}.png").write_bytes(image)
        else:
            import pyarrow as pa
            import pyarrow.parquet as pq

            place.mkdir(parents=True, exist_ok=True)
            rows = [{"bytes": image, "path": None} for image in some]
            kinds = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
            labels = pa.array([(start + row) % CLASSES for row in range(len(rows))], pa.int64())
            table = pa.table({"image": pa.array(rows, kinds), "label": labels})
            pq.write_table(table, place / f"{start // SHARD:05d}.parquet", row_group_size=1000)
    (place.parent / f"{place.name}.done").touch()


def bare(kind: str, place: Path) -> Iterator[bytes]:
    """All images, by the shortest way that there is."""
    if kind == "folder":
        for folder in sorted(os.listdir(place)):
            for name in sorted(os.listdir(place / folder)):
                with open(f"{place}/{folder}/{name}", "rb", buffering=0) as file:
                    yield file.read()
    else:
        import pyarrow.parquet as pq

        for shard in sorted(os.listdir(place)):
            with pq.ParquetFile(place / shard) as opened:
                for batch in opened.iter_batches(1000, columns=["image.bytes", "label"], use_threads=False):
                    yield from (image.as_py() for image in batch["image"].field("bytes"))


def measure(how: str, kind: str, place: Path) -> dict[str, float]:
    """Seconds, seconds of processor time, and bytes of memory beyond the beginning."""
    from sfumato.data import open_source

    open_source("digits", owner_key=bytes(32))  # which imports all that there is to import
    before = resource.getrusage(resource.RUSAGE_SELF)
    began = time.perf_counter()
    if kind == "simulated":
        simulate(int(place.name.split("-")[1]))
    elif how == "opened":
        from sfumato.data.readers import files

        files.MEMORY_SHARE = 0
        source = open_source(f"{kind}:{place}", owner_key=bytes(32), size=SIDE, channels=1)
        assert source.train.nbytes == 0
    else:
        for content in bare(kind, place):
            hashlib.sha256(content).digest()
            if how != HOW[0]:
                hashlib.sha256(np.asarray(Image.open(io.BytesIO(content), formats=["PNG"])).tobytes()).digest()
    seconds = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_SELF)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": seconds, "processor": processor, "memory": 1024 * (after.ru_maxrss - before.ru_maxrss)}


class Simulated:
    """Images of which only the paths are there."""

    room = 0.0

    def __init__(self, paths: Any):
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def name(self, place: int) -> str:
        return self.paths[place]

    def read(self, place: int) -> bytes:
        return self.paths[place].encode()


def simulate(count: int) -> None:
    """Everything that opening does with so many records of a tenth as many users, but for reading and decoding."""
    from sfumato.data import decoding, opening
    from sfumato.data.declared import Declared
    from sfumato.data.kinds import SourceKind
    from sfumato.data.readers.files import load_files
    from sfumato.data.readers.listing import ListingBuilder
    from sfumato.data.records import TextBuffer

    pixels = np.zeros((SIDE, SIDE, 1), np.uint8)
    decoding.decode_whole = lambda *_, **__: ([pixels], pixels)

    def load(self: SourceKind, argument: str, order: Any) -> Any:
        found, paths = ListingBuilder(), TextBuffer()
        for number in range(count):
            label = f"class-{number % CLASSES}"
            found.add(label, user=f"patient-{number // 10:010d}")
            paths.append(f"/data/pictures/{label}/image-{number:08d}.png")
        return load_files(found.listing(Simulated(paths)), order, where="folder")

    SourceKind.load = load
    opening.open_source("folder:/simulated", owner_key=bytes(32), declared=Declared(size=SIDE, channels=1))


def drawn(count: int) -> dict[str, float]:
    """Seconds for the participants of a step, the median of five."""
    from sfumato.privacy import PrivacyPlan
    from sfumato.randomness import RunKey, Sampler

    plan = PrivacyPlan.calibrate(examples=count, batch_size=4096, steps=100, noise_multiplier=1.0, delta=1e-8)
    sampler = Sampler(plan, RunKey.from_seed(0), records=count)
    times = []
    for step in range(5):
        began = time.perf_counter()
        sampler.draw(step)
        times.append(time.perf_counter() - began)
    return {"seconds": sorted(times)[2]}


if __name__ == "__main__":
    if sys.argv[1] == "--measure":
        print(json.dumps(measure(sys.argv[2], sys.argv[3], Path(sys.argv[4]))))
    else:
        main(Path(sys.argv[1]), [int(count) for count in sys.argv[2:]] or [100_000, 1_000_000, 10_000_000])
