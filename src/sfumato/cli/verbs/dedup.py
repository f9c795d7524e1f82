"""sfumato dedup: images of a private set of which a public one has copies or near copies."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from sfumato.cli.options.spellings import BitDepth, LabelColumns, OwnSide, Path, UserFrom, Whole, Window
from sfumato.cli.output import console

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from sfumato.data import Pair, Source
    from sfumato.models import Backbone, Expects
    from sfumato.observers.progress import Progress
    from sfumato.report import ShownPair

DROPS = ("private", "public", "none")
COPIES = 0.001
"""The limit that nothing but exact copies meets, mirrored or not."""


@dataclass(frozen=True, kw_only=True)
class Dedup:
    """Find copies and near copies of private images in a public set: crops, shifts, mirror images, other sizes, JPEG.

    Pre-training on an image that is also private breaks the promise for it. By default the private set is written
    again without such images: each is compared with the public set alone, so the promise holds for those that are
    left. To leave them out of the public set instead tells of the private one, and statements that come of it say so.
    """

    public: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="PUBLIC")]
    """The public source: digits, folder:PATH, npz:PATH, csv:PATH or torchvision:NAME."""
    private: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="PRIVATE")]
    """The private source."""
    drop: str = "private"
    """From which set images are left out: private, public, or none."""
    limit: Annotated[float | None, tyro.conf.arg(metavar="SHARE", help_behavior_hint="(default: 0.28)")] = None
    """The largest difference, over an image's contrast, that counts as a copy; 0.001 for exact copies, mirrored or
    not, alone."""
    backbone: Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="(default: pixels alone)")] = None
    """Compare what this network makes of the images, too: timm:NAME, torchvision:NAME, or a run of sfumato pretrain. It
    finds copies in other light or colours, or with a caption; its weights must come from public data."""
    weights: Path = None
    """A safetensors file with the backbone's weights, in place of those that its library downloads."""
    resolution: OwnSide = None
    """Side of what the backbone sees."""
    output: Path = None
    """Where the pairs and the smaller set go. (default: dedup/ and the private source's name,
    with -public where that set is the smaller one)"""
    bit_depth: BitDepth = None
    """How many bits images of 16 bits use, in both sets: 12 where white is 4095; larger values are refused."""
    window: Window = None
    """Or what of them becomes black and what white, in both sets."""
    user_from: UserFrom = None
    """Whose image each file of the private folder is: folder, or a regular expression; the smaller set keeps it."""
    label_columns: LabelColumns = None
    """Several labels of each image of the private set, as in training; the smaller set keeps them."""
    root: Path = None
    """Where torchvision's data sets are."""
    threads: Whole = None
    """CPU threads."""
    json: bool = False
    """End with one JSON object on standard output."""

    def run(self) -> int:
        """Compare, and write what came of it."""
        import json
        from pathlib import Path as FilePath

        from sfumato.data import refuse_absent

        for spec in (self.public, self.private):
            refuse_absent(spec)
        import numpy as np
        import torch

        from sfumato import models
        from sfumato._checks import SfumatoError, one_of, positive_integer
        from sfumato._files import write, writing
        from sfumato.cli.options.choices import stem_of
        from sfumato.data import find_duplicates
        from sfumato.data.identity.duplicates import LIMIT, SIDE
        from sfumato.observers.progress import Bars
        from sfumato.report import page_of_pairs
        from sfumato.training.preparation.prepare import default_threads

        one_of("drop", self.drop, DROPS)
        torch.set_num_threads(positive_integer("threads", default_threads() if self.threads is None else self.threads))
        # Not into the same place as the other way round.
        place = FilePath(self.output or f"dedup/{stem_of(self.private)}{'-public' if self.drop == 'public' else ''}")
        if place.exists() and (not place.is_dir() or any(place.iterdir())):
            raise SfumatoError(f"{place} exists and is not empty", "give --output a new directory")
        for name in ("weights", "resolution"):
            if self.backbone is None and getattr(self, name) is not None:
                raise SfumatoError(f"{name} is {getattr(self, name)}, and there is no backbone", "give `backbone` too")
        network = None
        if self.backbone is not None:
            network = models.load_backbone(self.backbone, weights=self.weights, resolution=self.resolution)
        with Bars() as progress:
            progress.begin("reading", 2)
            public, private = (self._opened(spec, size=SIDE, channels=3) for spec in (self.public, self.private))
            if set(public.materials) & set(private.materials):
                raise SfumatoError(
                    f"{self.public} and {self.private} hold the same images", "name the public set, then the private"
                )
            images = [
                np.concatenate([part.take(slice(None)) for part in (source.train, source.test)])
                for source in (public, private)
            ]
            # What is to be left out is looked for in the other set: all copies of it then go.
            looked_in, looked_for = images if self.drop != "public" else images[::-1]
            progress.begin("comparing", len(looked_for))
            pairs = find_duplicates(
                looked_in,
                looked_for,
                limit=LIMIT if self.limit is None else self.limit,
                on_progress=lambda done, _: progress.advance(done),
            )
            if network is not None:
                pairs = self._with_features(pairs, *network, progress)
        if self.drop == "public":
            pairs = [replace(pair, private=pair.public, public=pair.private) for pair in pairs]
        with writing(place):
            place.mkdir(parents=True, mode=0o700, exist_ok=True)
        summary = _summary(len(images[1]), len(images[0]), pairs)
        places = [_places(source) for source in (public, private)]
        listed = [
            asdict(pair) | {"public": places[0][pair.public], "private": places[1][pair.private]} for pair in pairs
        ]
        write(place / "pairs.json", json.dumps(listed, indent=1).encode(), private=True)
        shown = _shown(pairs, images[0], images[1], places[0], places[1])
        write(place / "pairs.html", page_of_pairs("Alike in both sets", summary, shown).encode(), private=True)
        # A filter by a set that was filtered by private data is not stable either.
        marked = self.drop == "public" or public.filtered or private.filtered
        written = self._written(pairs, public if self.drop == "public" else private, place, marked=marked)
        figures = {
            "public": len(images[0]),
            "private": len(images[1]),
            "exact": sum(pair.exact for pair in pairs),
            "near": sum(not pair.exact for pair in pairs),
            "by_features": sum(pair.by_features for pair in pairs),
            "page": str(place / "pairs.html"),
            "written": written,
        }
        if self.json:
            console.as_json(figures)
            return 0
        console.result(summary)
        console.note(f"{place / 'pairs.html'}   the pairs side by side; it shows private images")
        if written and any(pair.difference > COPIES for pair in pairs):
            console.note("note: near ones may be other images that look alike, and are left out as well: look at the")
            console.note(
                f"   page; --limit {COPIES} and another --output leave out exact copies, mirrored or not, alone"
            )
        if marked and written:
            console.note("note: this choice looked at private data without noise; statements that come of it say so")
        if written and self.drop == "private":
            console.note(f"note: runs on {written} and on {self.private} are counted apart, and their epsilons add up")
            console.note(f"next: sfumato train {written}")
        elif written:
            console.note(f"next: sfumato pretrain {written} --public")
        elif self.drop != "none":
            console.result("Nothing is left, so no set was written.")
        return 0

    def _with_features(
        self, pairs: Sequence[Pair], backbone: Backbone, expects: Expects, progress: Progress
    ) -> list[Pair]:
        """The pairs, and those that the backbone finds of images that have none."""
        from sfumato.data import find_alike
        from sfumato.runs.checkpoint import stored_materials
        from sfumato.runs.owner.public_records import refuse_trained_on
        from sfumato.training.caching import declared_by, features_either_way

        public, private = (
            self._opened(spec, **declared_by(backbone, expects, spec)) for spec in (self.public, self.private)
        )
        refuse_trained_on(private, stored_materials(self.weights or str(self.backbone)))
        looked_in, looked_for = (
            features_either_way(source, backbone, expects, progress=progress)
            for source in ((public, private) if self.drop != "public" else (private, public))
        )
        progress.begin("comparing features", len(looked_in) + len(looked_for))
        alike = find_alike(looked_in, looked_for, on_progress=lambda done, _: progress.advance(done))
        found = {pair.private for pair in pairs}
        return sorted([*pairs, *(pair for pair in alike if pair.private not in found)], key=lambda pair: pair.private)

    def _opened(self, spec: str, *, size: int | None = None, channels: int | None = None) -> Source:
        from sfumato.data import open_source
        from sfumato.randomness import owner_key

        return open_source(
            spec,
            owner_key=owner_key(),
            root=self.root,
            size=size,
            channels=channels,
            bit_depth=self.bit_depth,
            window=self.window,
            open_set=spec == self.public,  # it may be of a single class
            user_from=self.user_from if spec == self.private else None,
            label_columns=self.label_columns if spec == self.private else None,
        )

    def _written(self, pairs: Sequence[Pair], source: Source, place: Any, *, marked: bool) -> str | None:
        """The set without its duplicates, as another source; None where none is asked for, or nothing is left.

        Args:
            source: the set as it was compared, whose images are small and in colour.
        """
        from sfumato.data import write_without

        left_out = {pair.private if self.drop == "private" else pair.public for pair in pairs}
        if self.drop == "none" or len(left_out) == len(source.train) + len(source.test):
            return None
        if source.train.files is None:  # a list of files needs no pixels; arrays are written as they were
            source = self._opened(self.private if self.drop == "private" else self.public)
        return write_without(
            {"train": source.train, "test": source.test},
            source.classes,
            left_out,
            place / self.drop,
            marked=marked,
        )


def _summary(private: int, public: int, pairs: Sequence[Pair]) -> str:
    exact = sum(pair.exact for pair in pairs)
    near = len(pairs) - exact
    theirs, mine = (len({getattr(pair, side) for pair in pairs}) for side in ("public", "private"))
    return (
        f"{mine} of {private:,} private images and {theirs} of {public:,} public ones are alike: "
        f"{exact} exact cop{'y' if exact == 1 else 'ies'}, {near} near one{'' if near == 1 else 's'}."
    )


def _places(source: Source) -> list[dict[str, Any]]:
    """Where its owner finds each record, of both parts: a file, or an array and a row of it, counted from 0."""
    from sfumato.data import Records

    found: list[dict[str, Any]] = []
    for name, part in (("train", source.train), ("test", source.test)):
        if part.files is not None:
            found += [{"file": str(file)} for file in part.files]
            continue
        array = {"digits": "images", "npz": f"x_{name}" if source.has_own_split else "x"}.get(source.kind, name)
        rows = part.rows if isinstance(part, Records) and part.rows is not None else range(len(part))
        found += [{"array": array, "row": int(row)} for row in rows]
    return found


def _name(place: dict[str, Any]) -> str:
    return place.get("file") or f"{place['array']}[{place['row']}]"


def _note(pair: Pair) -> str:
    if pair.exact:
        return "an exact copy"
    if pair.by_features:
        return f"alike to the backbone, {pair.difference:.0%} as far apart as different images"
    return f"differs by {pair.difference:.0%} of its contrast{', mirrored' if pair.mirrored else ''}"


def _shown(
    pairs: Sequence[Pair],
    public: np.ndarray,
    private: np.ndarray,
    public_places: Sequence[dict[str, Any]],
    private_places: Sequence[dict[str, Any]],
) -> list[ShownPair]:
    from sfumato.report import ShownPair

    return [
        ShownPair(
            private=private[pair.private],
            public=public[pair.public],
            private_name=_name(private_places[pair.private]),
            public_name=_name(public_places[pair.public]),
            note=_note(pair),
            difference=pair.difference,
        )
        for pair in pairs
    ]
