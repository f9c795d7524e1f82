"""Give each parser files that were made to do harm, and see that it reads or refuses them.

    python benchmarks/trust/fuzz.py [PARSER ...] [--minutes 30] [--seed 0]

Valid files are changed by chance (`benchmarks/shared/hostile.py`). A parser may read what it gets, or refuse it in one
line (`SfumatoError`). Anything else is a finding: another error, more than 10 seconds of the processor, more than 1 GiB
of memory. The outcome of each parser is added to benchmarks/results/fuzz.json.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import io
import json
import logging
import os
import random
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from PIL import Image

from benchmarks import RESULTS
from benchmarks.shared import hostile
from sfumato.cli import main
from sfumato.cli.options import recipe
from sfumato.data import open_source
from sfumato.privacy import Gaussian, Poisson, PrivacyPlan, ledger
from sfumato.runs import load, verify
from sfumato.runs.checkpoint import Checkpoint
from sfumato.runs.owner import store, uses
from sfumato.runs.owner.lines import DataIdentity

RESULT = RESULTS / "fuzz.json"
SIDE, COUNT = 8, 12
OPTIONS = "--noise-multiplier 8 --steps 2 --batch-size 32 --model linear --seed 7 --device cpu --threads 1"


@dataclass(frozen=True, kw_only=True)
class Parser:
    """Something that reads files of strangers.

    Args:
        make: write valid files into a directory, and give the names of those that are changed.
        read: what is in the directory.
    """

    make: Callable[[Path], list[str]]
    read: Callable[[Path], Any]


def pixels(count: int = COUNT) -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 (N, S, S) of two classes, and their labels."""
    return np.random.default_rng(0).integers(0, 256, (count, SIDE, SIDE), dtype=np.uint8), np.arange(count) % 2


def encoded(image: np.ndarray, kind: str) -> bytes:
    """An image as a file of this kind."""
    stream = io.BytesIO()
    Image.fromarray(image).save(stream, kind)
    return stream.getvalue()


def opened(spec: str, *, classes: tuple[str, ...] | None = None) -> Callable[[Path], Any]:
    """Open a source, and take its records."""

    def read(place: Path) -> None:
        source = open_source(spec.format(place), owner_key=bytes(32), size=SIDE, channels=1, classes=classes)
        source.train.take(slice(0, len(source.train)))

    return read


def images(place: Path) -> list[str]:
    """A folder with a file of each kind in each class."""
    kinds, (found, _) = ("png", "jpeg", "bmp", "gif", "tiff", "webp", "ppm"), pixels(14)
    names = [f"data/{label}/{kind}{label}.{kind}" for label in "ab" for kind in kinds]
    for name, image in zip(names, found, strict=True):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(encoded(image, name.rpartition(".")[2]))
    return names


def dicoms(place: Path) -> list[str]:
    """A folder of DICOM files."""
    import pydicom

    found, labels = pixels()
    names = [f"data/{'ab'[label]}/{number}.dcm" for number, label in enumerate(labels)]
    for name, image in zip(names, found, strict=True):
        data = pydicom.Dataset()
        data.file_meta = pydicom.dataset.FileMetaDataset()
        data.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
        data.file_meta.MediaStorageSOPClassUID = data.SOPClassUID = pydicom.uid.CTImageStorage
        data.file_meta.MediaStorageSOPInstanceUID = data.SOPInstanceUID = "1.2.3"
        data.Rows, data.Columns, data.SamplesPerPixel, data.PhotometricInterpretation = SIDE, SIDE, 1, "MONOCHROME2"
        data.BitsAllocated, data.BitsStored, data.HighBit, data.PixelRepresentation = 8, 8, 7, 0
        data.PatientID, data.PixelData = "p", image.tobytes()
        data["PixelData"].VR = "OW"
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        data.save_as(place / name, enforce_file_format=True)
    return names


def archive(place: Path) -> list[str]:
    """Arrays, packed and not."""
    found, labels = pixels()
    np.savez(place / "data.npz", x=found, y=labels)
    np.savez_compressed(place / "other.npz", x=found, y=labels)
    return ["data.npz"]


def table(place: Path) -> list[str]:
    """A table of files, with images of its own."""
    found, labels = pixels()
    rows = ["path,label,user"]
    for number, (image, label) in enumerate(zip(found, labels, strict=True)):
        (place / f"{number}.png").write_bytes(encoded(image, "png"))
        rows.append(f'{number}.png,"{"ab"[label]}",{number // 2}')
    (place / "data.csv").write_text("\n".join(rows) + "\n")
    return ["data.csv"]


def texts(place: Path) -> list[str]:
    """A packed table of texts."""
    rows = ["label,text", *(f"{'ab'[number % 2]},word{number} and more" for number in range(COUNT))]
    (place / "data.csv.gz").write_bytes(gzip.compress("\n".join(rows).encode()))
    return ["data.csv.gz"]


def parquet(place: Path) -> list[str]:
    """A table with the images in it."""
    import pyarrow
    from pyarrow import parquet as library

    found, labels = pixels()
    images = [{"bytes": encoded(image, "png"), "path": f"{number}.png"} for number, image in enumerate(found)]
    library.write_table(
        pyarrow.table({"image": images, "label": ["ab"[label] for label in labels]}), place / "data.parquet"
    )
    return ["data.parquet"]


def trained(place: Path, source: str = "digits", *further: str) -> None:
    """A small run."""
    options = OPTIONS.replace("--seed 7 ", "") if "--report-epsilon" in further else OPTIONS  # a seed publishes nothing
    if main(["train", source, *options.split(), *further, "--output", str(place / "run")]):
        sys.exit("the run failed")


def finished(place: Path) -> list[str]:
    """A run and what it is checked by."""
    trained(place)
    return [f"run/{name}" for name in ("statement.json", "plan.json", "ledger.jsonl", "settings.json")]


def model(place: Path) -> list[str]:
    """A model file alone."""
    trained(place)
    return ["run/model.safetensors"]


def figures(place: Path) -> list[str]:
    """A run with published figures."""
    found, labels = pixels(200)
    np.savez(place / "data.npz", x=found, y=labels)
    declared = ("--examples", "200", "--delta", "1e-5", "--size", f"{SIDE}", "--channels", "1", "--classes", "0", "1")
    trained(place, f"npz:{place}/data.npz", *declared, "--report-epsilon", "1")
    return ["run/figures.json"]


def unfinished(place: Path) -> list[str]:
    """A run that is to go on."""
    from sfumato.training import loop

    descend = loop.descend

    def stopping(*_: Any) -> None:
        raise InterruptedError

    loop.descend = stopping
    try:
        main(["train", "digits", *OPTIONS.split(), "--output", str(place / "run")])
    finally:
        loop.descend = descend
    return [
        f"run/{name}" for name in ("settings.json", "plan.json", "ledger.jsonl", "dice.key", "checkpoint.safetensors")
    ]


def owners_list(place: Path) -> list[str]:
    """The list of an owner's runs, and its count."""
    os.environ["SFUMATO_HOME"] = str(place)
    plan = PrivacyPlan(
        population=1000,
        participation=Poisson(batch_size=100),
        mechanism=Gaussian(noise_multiplier=2.0),
        steps=50,
        delta=1e-5,
    )
    for number in range(3):
        uses.record(DataIdentity(("data",)), plan, run=f"{number}")
    return [store.FILE, store.COUNT]


def recipes(place: Path) -> list[str]:
    """Recipes."""
    for number, name in enumerate(recipe.names()):
        (place / f"{number}.toml").write_bytes((recipe.FOLDER / f"{name}.toml").read_bytes())
    return [path.name for path in place.glob("*.toml")]


@functools.cache
def known() -> list[str]:
    """The options that recipes have."""
    tables = [recipe.table_of(f"recipe:{one}") for one in recipe.names()]
    return sorted({name.replace("-", "_") for one in tables for table in (one, *one.get("row", [])) for name in table})


def read_recipe(place: Path) -> None:
    """Plan by the one that was changed."""
    changed = max(place.glob("*.toml"), key=lambda path: path.stat().st_mtime_ns)
    recipe.read(str(changed), {}, known())
    recipe.epsilon_of(str(changed))
    recipe.row_option(str(changed))


def resumed(place: Path) -> None:
    """Go on with a run, without its steps."""
    main(["finish", str(place / "run")])


def loaded(place: Path) -> None:
    """A model, and what it says of an image."""
    load(place / "run" / "model.safetensors")


def verified(place: Path) -> None:
    """A verdict, in words."""
    verdict = verify(place / "run")
    str(verdict), verdict.line
    main(["report", str(place / "run")])


PARSERS: Mapping[str, Parser] = {
    "images": Parser(make=images, read=opened("folder:{}/data", classes=("a", "b"))),
    "dicom": Parser(make=dicoms, read=opened("folder:{}/data", classes=("a", "b"))),
    "npz": Parser(make=archive, read=opened("npz:{}/data.npz")),
    "csv": Parser(make=table, read=opened("csv:{}/data.csv")),
    "csv of texts": Parser(
        make=texts, read=lambda place: open_source(f"csv:{place}/data.csv.gz", owner_key=bytes(32), length=4)
    ),
    "parquet": Parser(make=parquet, read=opened("parquet:{}/data.parquet")),
    "checkpoint": Parser(
        make=lambda place: [name for name in unfinished(place) if "checkpoint" in name],
        read=lambda place: Checkpoint.load(place / "run" / "checkpoint.safetensors"),
    ),
    "model": Parser(make=model, read=loaded),
    "ledger": Parser(
        make=lambda place: [name for name in finished(place) if "ledger" in name],
        read=lambda place: ledger.read(place / "run" / "ledger.jsonl"),
    ),
    "run": Parser(make=finished, read=verified),
    "unfinished run": Parser(make=unfinished, read=resumed),
    "figures": Parser(make=figures, read=verified),
    "uses": Parser(make=owners_list, read=lambda _: uses.earlier_uses(DataIdentity(("data",)))),
    "recipe": Parser(make=recipes, read=read_recipe),
}


def fuzz(
    name: str, scratch: Path, *, seed: int = 0, seconds: float | None = None, files: int | None = None
) -> dict[str, Any]:
    """Give one parser files, for so long or so many: how many it read and refused, and what else it came to."""
    parser, dice = PARSERS[name], random.Random(f"{seed} {name}")
    os.environ["SFUMATO_HOME"] = str(scratch / "home")
    place = scratch / "files"
    place.mkdir()
    counts: Counter[str] = Counter()
    hidden = io.StringIO()
    logging.disable(logging.CRITICAL)
    with warnings.catch_warnings(), redirect_stdout(hidden), redirect_stderr(hidden):
        warnings.simplefilter("ignore")
        names = parser.make(place)
        kept = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
        valid = [kept[place / one] for one in names]
        if (first := hostile.outcome(lambda: parser.read(place))) != "read":
            raise SystemExit(f"{name}: valid files are {first}")
        began, most, longest = time.monotonic(), 10**9 if files is None else files, 0.0
        found: dict[str, Path] = {}
        with hostile.limited():
            while sum(counts.values()) < most and (seconds is None or time.monotonic() - began < seconds):
                target = place / dice.choice(names)
                target.write_bytes(hostile.changed(kept[target], valid, dice))
                started = time.monotonic()
                result = hostile.outcome(lambda: parser.read(place))
                longest = max(longest, time.monotonic() - started)
                counts[result] += 1
                if result not in ("read", "refused") and result not in found:
                    found[result] = target
                    keep(name, target, len(found))
                restore(place, kept)
                hidden.seek(0)
                hidden.truncate()
    logging.disable(logging.NOTSET)
    others = {result: count for result, count in counts.items() if result not in ("read", "refused")}
    return {
        "files": sum(counts.values()),
        "read": counts["read"],
        "refused": counts["refused"],
        "findings": others,
        "longest_seconds": round(longest, 2),
        "seconds": round(time.monotonic() - began, 1),
        "seed": seed,
    }


KEEP: Path | None = None
"""Where files that were findings go."""


def keep(name: str, target: Path, number: int) -> None:
    """Keep a file that was a finding, to be looked at."""
    if KEEP is not None:
        KEEP.mkdir(parents=True, exist_ok=True)
        (KEEP / f"{name.replace(' ', '-')}-{number}-{target.name}").write_bytes(target.read_bytes())


def restore(place: Path, kept: Mapping[Path, bytes]) -> None:
    """The valid files as they were, and no others."""
    for path in sorted(place.rglob("*"), reverse=True):
        if path.is_file() and path not in kept:
            path.unlink()
    for path, content in kept.items():
        if not path.is_file() or path.read_bytes() != content:
            path.write_bytes(content)


def run(arguments: argparse.Namespace) -> int:
    """Do it all; exit status 1 if anything was found."""
    global KEEP
    KEEP = arguments.keep
    known = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    bad = False
    for name in arguments.parsers or PARSERS:
        with tempfile.TemporaryDirectory() as scratch:
            known[name] = fuzz(name, Path(scratch), seed=arguments.seed, seconds=60 * arguments.minutes)
        print(name, json.dumps(known[name], indent=2), flush=True)
        bad |= bool(known[name]["findings"])
        RESULT.write_text(json.dumps(dict(sorted(known.items())), indent=2) + "\n")
    return 1 if bad else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parsers", nargs="*", metavar="PARSER", help=f"of {', '.join(PARSERS)} (default: all)")
    parser.add_argument("--minutes", type=float, default=30.0, help="for each parser (default: 30)")
    parser.add_argument("--seed", type=int, default=0, help="decides the changes (default: 0)")
    parser.add_argument("--keep", type=Path, help="a folder for the files that were findings")
    sys.exit(run(parser.parse_args()))
