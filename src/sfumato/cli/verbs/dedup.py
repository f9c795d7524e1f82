"""sfumato dedup: finds private images of which a public set has copies or near copies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from sfumato._checks import SfumatoError
from sfumato._files import write, write_errors
from sfumato.cli.options.run_options import EndsWithJson, ThreadsOption
from sfumato.cli.output import console
from sfumato.cli.output.console import Note
from sfumato.cli.parser import argument, option, refuse_given

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from sfumato.data import Pair, Source
    from sfumato.models import Backbone, ExpectedInput
    from sfumato.observers.progress import Progress

PAGE = "pairs.html"
COPIES = 0.001
"""The limit within which only exact copies are found, mirrored or not."""


@dataclass(frozen=True, kw_only=True)
class Dedup(EndsWithJson, ThreadsOption):
    """Find copies and near copies of private images in a public set: crops, shifts, mirror images, other sizes, JPEG.

    Pre-training on an image that is also private breaks the guarantee for it. By default the private set is written
    again without such images. Each image is compared with the public set alone, so the guarantee holds for the others.
    Removing them from the public set instead reveals something about the private set, and later statements say so.
    """

    public: str = argument("PUBLIC")
    """The public images, spelled as for sfumato train, such as folder:PATH."""
    private: str = argument("PRIVATE")
    """The private source."""
    drop: Literal["private", "public", "none"] = "private"
    """Which set loses the duplicates: private, public (which reveals something about the private set), or none."""
    limit: float | None = option("SHARE", "0.28")
    """Largest difference that counts as a copy, relative to the image's contrast."""
    backbone: str | None = option("NAME", "pixels only")
    """Also compare features of this public network (timm:NAME, torchvision:NAME, or a run of sfumato pretrain), to find
    copies in other light or colours."""
    weights: str | None = option("PATH")
    """Safetensors file with the backbone's weights. (default: downloaded by its library)"""
    resolution: int | None = option("PIXELS", "what it was trained with")
    """Input size of the backbone in pixels."""
    output: str | None = option("PATH")
    """Where pairs.json, pairs.html and the smaller set go. (default: dedup/ and the private source's name, with -public
    if that set is the smaller one)"""
    bit_depth: int | None = option("BITS", "16-bit images are refused")
    """Number of bits that 16-bit images use, in both sets: 12 if white is 4095."""
    window: tuple[int, int] | None = option("LOW,HIGH", "16-bit images are refused")
    """Alternatively, the values that become black and white, in both sets."""
    user_from: str | None = option("class|folder|dicom|REGEX", "the user column, if there is one")
    """How to find the person behind each private image."""
    label_columns: tuple[str, ...] | None = option("NAME [NAME ...]", "one label per image")
    """Several labels of each private image, as in sfumato train. The smaller set keeps them."""
    root: str | None = option("PATH")
    """Folder of torchvision's data sets."""

    def run(self) -> None:
        """Compare the sets and write the results."""
        from sfumato.data import refuse_absent

        for spec in (self.public, self.private):
            refuse_absent(spec)
        self.set_threads()
        place, network = self._place(), self._network()
        with self.progress_bars() as progress:
            compared = self._compared(network, progress)
        compared.write(place)
        # Filtering by a set that was itself filtered by private data is not stable either.
        marked = self.drop == "public" or compared.public.filtered or compared.private.filtered
        written = self._write(compared, place, marked=marked)
        empty = written is None and self.drop != "none"
        console.show(
            {**compared.figures(), "page": str(place / PAGE), "written": written},
            compared.summary(),
            *map(Note, self._notes(compared, place, written, marked=marked)),
            "No images are left, so no set was written." if empty else None,
            json=self.json,
        )

    def _place(self) -> Path:
        """The output directory. The default depends on which set loses its duplicates."""
        from sfumato.data.paths import stem_of

        place = Path(self.output or f"dedup/{stem_of(self.private)}{'-public' if self.drop == 'public' else ''}")
        if place.exists() and (not place.is_dir() or any(place.iterdir())):
            raise SfumatoError(f"{place} exists and is not empty", "give --output a new directory")
        return place

    def _network(self) -> tuple[Backbone, ExpectedInput] | None:
        """The backbone, if one is given."""
        from sfumato import models

        if self.backbone is None:
            refuse_given("is for --backbone", weights=self.weights, resolution=self.resolution)
            return None
        return models.load_backbone(self.backbone, weights=self.weights, resolution=self.resolution)

    def _compared(self, network: tuple[Backbone, ExpectedInput] | None, progress: Progress) -> Compared:
        """Both sets, and the pairs of similar images."""
        import numpy as np

        from sfumato.data import find_duplicates
        from sfumato.data.duplicates import LIMIT, SIDE

        progress.begin("reading", 2)
        public, private = (self._open(spec, size=SIDE, channels=3) for spec in (self.public, self.private))
        if set(public.data_digests) & set(private.data_digests):
            raise SfumatoError(
                f"{self.public} and {self.private} hold the same images", "name the public set, then the private"
            )
        images = [
            np.concatenate([part.take(slice(None)) for part in (source.train, source.test)])
            for source in (public, private)
        ]
        # Each image of the set to be filtered is searched for in the other set, so all of its copies are left out.
        searched, wanted = images if self.drop != "public" else images[::-1]
        progress.begin("comparing", len(wanted))
        limit = LIMIT if self.limit is None else self.limit
        pairs = find_duplicates(searched, wanted, limit=limit, on_progress=lambda done, _: progress.advance(done))
        if network is not None:
            pairs = self._with_features(pairs, *network, progress)
        if self.drop == "public":
            pairs = [replace(pair, private=pair.public, public=pair.private) for pair in pairs]
        return Compared(public, private, images[0], images[1], pairs)

    def _notes(self, compared: Compared, place: Path, written: str | None, *, marked: bool) -> Iterator[str]:
        """Notes on the page, on the consequences of the choice, and on the next command."""
        yield f"{place / PAGE}   the pairs side by side; it shows private images"
        if written is None:
            return
        if any(pair.difference > COPIES for pair in compared.pairs):
            yield "note: near copies may be different images that look alike; they are left out too. Check the page;"
            yield f"   with --limit {COPIES} and another --output, only exact copies are left out, mirrored or not"
        if marked:
            yield "note: this choice used private data without noise; later statements say so"
        if self.drop == "private":
            yield f"note: runs on {written} and on {self.private} are counted separately, and their epsilons add up"
            yield f"next: sfumato train {written}"
        else:
            yield f"next: sfumato pretrain {written} --public"

    def _with_features(
        self, pairs: Sequence[Pair], backbone: Backbone, expects: ExpectedInput, progress: Progress
    ) -> list[Pair]:
        """The pairs, with those that the backbone finds for images without a pair."""
        from sfumato.data import find_alike
        from sfumato.runs.checkpoint import stored_materials
        from sfumato.runs.owner.store import refuse_trained_on
        from sfumato.training.caching import declarations_from
        from sfumato.training.computing import features_with_mirror

        public, private = (
            self._open(spec, **declarations_from(backbone, expects, spec)) for spec in (self.public, self.private)
        )
        refuse_trained_on(private, stored_materials(self.weights or str(self.backbone)))
        searched, wanted = (
            features_with_mirror(source, backbone, expects, progress=progress)
            for source in ((public, private) if self.drop != "public" else (private, public))
        )
        progress.begin("comparing features", len(searched) + len(wanted))
        alike = find_alike(searched, wanted, on_progress=lambda done, _: progress.advance(done))
        paired = {pair.private for pair in pairs}
        return sorted([*pairs, *(pair for pair in alike if pair.private not in paired)], key=lambda pair: pair.private)

    def _open(self, spec: str, *, size: int | None = None, channels: int | None = None) -> Source:
        from sfumato.data import BY_CLASS, open_source
        from sfumato.randomness import owner_key

        return open_source(
            spec,
            owner_key=owner_key(),
            root=self.root,
            size=size,
            channels=channels,
            bit_depth=self.bit_depth,
            window=self.window,
            open_set=spec == self.public or self.user_from == BY_CLASS,  # allows a single class, or a split by class
            user_from=self.user_from if spec == self.private else None,
            label_columns=self.label_columns if spec == self.private else None,
        )

    def _write(self, compared: Compared, place: Path, *, marked: bool) -> str | None:
        """Write the set without its duplicates. Returns the new source; None if none is written, or nothing is left."""
        from sfumato.data import write_without

        if self.drop == "none":
            return None
        source = compared.public if self.drop == "public" else compared.private
        left_out = {getattr(pair, self.drop) for pair in compared.pairs}
        if len(left_out) == len(source.train) + len(source.test):
            return None
        if source.train.files is None:  # files need no pixels; arrays are written at their original size
            source = self._open(getattr(self, self.drop))
        parts = {"train": source.train, "test": source.test}
        return write_without(parts, source.classes, left_out, place / self.drop, marked=marked)


class Compared(NamedTuple):
    """Two sets, their images as small RGB arrays (N, SIDE, SIDE, 3), and the pairs of similar images."""

    public: Source
    private: Source
    public_images: np.ndarray
    private_images: np.ndarray
    pairs: list[Pair]

    def figures(self) -> dict[str, int]:
        """The number of images in each set, and of pairs of each kind."""
        return {
            "public": len(self.public_images),
            "private": len(self.private_images),
            "exact": sum(pair.exact for pair in self.pairs),
            "near": sum(not pair.exact for pair in self.pairs),
            "by_features": sum(pair.by_features for pair in self.pairs),
        }

    def summary(self) -> str:
        """The figures in a sentence."""
        count = self.figures()
        exact, near = count["exact"], count["near"]
        public, private = (len({getattr(pair, side) for pair in self.pairs}) for side in ("public", "private"))
        return (
            f"{private} of {count['private']:,} private images and {public} of {count['public']:,} public ones are "
            f"similar: {exact} exact cop{'y' if exact == 1 else 'ies'}, {near} near cop{'y' if near == 1 else 'ies'}."
        )

    def write(self, place: Path) -> None:
        """Write the pairs, as a list of locations and as a page with the images."""
        import json

        from sfumato.report import duplicates_page

        with write_errors(place):
            place.mkdir(parents=True, mode=0o700, exist_ok=True)
        listed, shown = [], []
        for pair in self.pairs:
            places = {"public": _place(self.public, pair.public), "private": _place(self.private, pair.private)}
            names = {f"{side}_name": at.get("file") or f"{at['array']}[{at['row']}]" for side, at in places.items()}
            images = {"private": self.private_images[pair.private], "public": self.public_images[pair.public]}
            listed.append(asdict(pair) | places)
            shown.append({**images, **names, "note": _note(pair), "difference": pair.difference})
        write(place / "pairs.json", json.dumps(listed, indent=1).encode(), private=True)
        write(place / PAGE, duplicates_page("Alike in both sets", self.summary(), shown).encode(), private=True)


def _place(source: Source, number: int) -> dict[str, Any]:
    """The location of a record, counted over both parts: a file, or an array and a row of it, counted from 0."""
    name, part = ("train", source.train) if number < len(source.train) else ("test", source.test)
    row = number if name == "train" else number - len(source.train)
    if part.files is not None:
        return {"file": str(part.files[row])}
    array = {"digits": "images", "npz": f"x_{name}" if source.has_own_split else "x"}.get(source.kind, name)
    rows = getattr(part, "rows", None)
    return {"array": array, "row": int(row if rows is None else rows[row])}


def _note(pair: Pair) -> str:
    if pair.exact:
        return "an exact copy"
    if pair.by_features:
        return f"similar features, at {pair.difference:.0%} of the distance of different images"
    return f"differs by {pair.difference:.0%} of its contrast{', mirrored' if pair.mirrored else ''}"
