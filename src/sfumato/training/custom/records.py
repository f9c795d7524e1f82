"""The training records of a custom loop: the model's own inputs, or a source opened as in `sfumato.train`."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import IterableDataset, default_collate

from sfumato._checks import SfumatoError
from sfumato.data import Source, Tokens, Transform, open_source, own_codes
from sfumato.data.readers.python_data import is_map_style
from sfumato.gradients.checks.external_models import undense
from sfumato.gradients.examples import Tree, tree_map, tree_tensors
from sfumato.privacy import Circumstances
from sfumato.randomness import RunKey

_CODE = 16
_KINDS = (
    "a pair (inputs, targets) of tensors, a dict of tensors with `labels`, a map-style data set of either, or data for "
    "`sfumato.open_source`"
)
LABELS = "labels"
"""The name of the targets in a dict of inputs, as for models of transformers."""


@dataclass(frozen=True, kw_only=True)
class LoopRecords:
    """Training records, read by row number.

    Args:
        count: number of records, or of users that are drawn.
        read: returns inputs and targets (b, ...) for row numbers int64 (b,).
        codes: uint8 (N, 16), keyed digests of each record when it was first read.
        sums: uint64 (N,), sums over each record's bytes at that time (`_sums`).
        identifiers: uint8 (N, 32), two digests that identify each record in other data sets.
        data_digests, places: identify the data on the owner's list of runs (`Source.data_digests`).
        examples: N of the plan: the number of records, or the declared number of a source.
        facts: the circumstances of the data for the statement.
        smallest, largest: the smallest and largest target, if each target is one integer.
        users: identifies the assignment of records to users; empty if the guarantee is for examples.
    """

    count: int
    read: Callable[[np.ndarray], tuple[Tree, Tree]] = field(repr=False)
    codes: np.ndarray = field(repr=False)
    sums: np.ndarray = field(repr=False)
    identifiers: np.ndarray = field(repr=False)
    data_digests: tuple[str, ...] = field(repr=False)
    places: tuple[str, ...] = field(default=(), repr=False)
    examples: int
    facts: Circumstances = field(default_factory=partial(Circumstances, read=("examples",)))
    smallest: int | None = None
    largest: int | None = None
    users: str = ""
    key: bytes = field(repr=False)

    @property
    def fingerprint(self) -> str:
        """HMAC of all records in order, and of their users, 64 hexadecimal digits. Reveals nothing without the owner's
        key."""
        content = b"own records" + self.codes.tobytes() + self.users.encode()
        return hmac.new(self.key, content, hashlib.sha256).hexdigest()

    def take(self, rows: np.ndarray) -> tuple[Tree, Tree]:
        """Inputs and targets (b, ...) of these rows.

        **Guarantee.** Each record is the one that was first read: a loop's body that changes the user's tensors, for
        example by statistics of all records, changes no step. Assumption: the change was not made to hide from `_sums`.

        Errors: `SfumatoError` for a record that has changed.
        """
        inputs, targets = self.read(rows)
        if (odd := np.flatnonzero(_sums(inputs, targets) != self.sums[rows])).size:
            raise SfumatoError(
                f"record {rows[odd[0]]} of the data has changed since it was first read",
                "prepare the data before the call, change only copies (inputs.clone()), and give a data set without "
                "random transforms",
            )
        return inputs, targets

    def pieces(self, rows: np.ndarray, size: int, key: RunKey, step: int) -> list[tuple[np.ndarray, ...]]:
        """The micro-batches of a step, as row numbers (b,), at most `size`."""
        return [(rows[start : start + size],) for start in range(0, len(rows), size)]

    def names(self, rows: np.ndarray) -> Sequence[object]:
        """What dropout keys are drawn by: the row numbers."""
        return rows.tolist()

    def batch(self, rows: np.ndarray) -> tuple[Tree, ...]:
        """Inputs and targets (b, ...) of a micro-batch."""
        return self.take(rows)

    @property
    def zero_record(self) -> tuple[Tree, Tree]:
        """Zeros with the shapes and types of one record."""
        return tree_map(torch.zeros_like, self.read(np.zeros(1, np.int64)))  # type: ignore[return-value]


def own_records(data: Any, owner_key: bytes) -> LoopRecords:
    """The training records of any supported kind of data.

    Args:
        data: the model's inputs: a pair (inputs, targets), each a tensor or array (N, ...), or a tuple or dict of them;
            a dict of them with `labels`, which are the targets and remain among the inputs; or a map-style data set of
            such pairs or dicts. Otherwise an opened source or data for `sfumato.open_source`, whose training part
            becomes the model's inputs.
        owner_key: the owner's secret.

    Errors: `SfumatoError` for anything else, and for data that are empty or whose parts have different lengths.
    """
    if isinstance(data, Source):
        return _from_source(data, owner_key)
    if isinstance(data, dict) and LABELS in data:
        return _from_tensors(data, data[LABELS], owner_key)
    if isinstance(data, (tuple, list)) and len(data) == 2 and not all(map(is_map_style, data)):
        return _from_tensors(data[0], data[1], owner_key)
    if is_map_style(data) and not isinstance(data, IterableDataset) and not _holds_images(data):
        return _from_dataset(data, owner_key)
    return _from_source(open_source(data, owner_key=owner_key), owner_key)


def _holds_images(data: Any) -> bool:
    """Whether the items hold Pillow images, as in data sets of torchvision and Hugging Face without a transform."""
    return len(data) > 0 and any(isinstance(one, Image.Image) for one in tree_leaves(data[0]))


def _from_source(source: Source, owner_key: bytes) -> LoopRecords:
    if source.multilabel or source.next_words or source.cache is not None:
        raise SfumatoError(
            "private_steps takes only sources of images with one label each, or of texts",
            "give a pair (inputs, targets) of tensors",
        )
    if source.at_most is not None:
        raise SfumatoError(
            f"the source keeps at most {source.at_most} records of each user, so another record may take the place of "
            "one that is missing",
            "give the source with all records, with users and per_user",
        )
    transform: Any = source.tokens or Transform(
        size=source.size, channels=source.channels, bit_depth=source.bit_depth, window=source.window
    )
    labels = torch.from_numpy(source.train.labels)

    def read(rows: np.ndarray) -> tuple[Tree, Tree]:
        stored = source.train.take(rows)
        images = transform(torch.from_numpy(stored) if isinstance(transform, Tokens) else stored)
        return images, labels[torch.from_numpy(rows)]

    return LoopRecords(
        **_digest_all(owner_key, read, len(source.train))
        | {"data_digests": source.data_digests, "identifiers": own_codes(source.train, owner_key)},
        places=source.places,
        examples=source.examples,
        facts=Circumstances(
            read=source.read,
            data_public=source.public,
            filtered=source.filtered,
            published=source.published and source.public,
            tokens=None if source.tokens is None else source.tokens.described,
        ),
        key=owner_key,
    )


def _from_tensors(inputs: Any, targets: Any, owner_key: bytes) -> LoopRecords:
    inputs, targets = _as_tensors(inputs, "inputs"), _as_tensors(targets, "targets")
    counts = sorted({len(one) if one.dim() else 0 for one in (*tree_tensors(inputs), *tree_tensors(targets))})
    if len(counts) > 1 or counts == [0]:
        raise SfumatoError(
            f"inputs and targets must have one row for each record, got {' and '.join(map(str, counts))} rows",
            "give tensors (N, ...) of the same N",
        )

    def read(rows: np.ndarray) -> tuple[Tree, Tree]:
        chosen = torch.from_numpy(rows)
        return tree_map(lambda one: one.index_select(0, chosen), (inputs, targets))  # type: ignore[return-value]

    return LoopRecords(**_digest_all(owner_key, read, counts[0]), examples=counts[0], key=owner_key)


def _from_dataset(data: Any, owner_key: bytes) -> LoopRecords:
    if not len(data):
        raise SfumatoError(f"the data set {type(data).__name__} is empty", f"give {_KINDS}")

    def read(rows: np.ndarray) -> tuple[Tree, Tree]:
        items = [data[int(row)] for row in rows]
        try:
            found = default_collate(items)
            inputs, targets = (found, found[LABELS]) if isinstance(found, Mapping) else found
        except (TypeError, ValueError, RuntimeError, AttributeError, KeyError) as error:
            raise SfumatoError(
                f"the items of {type(data).__name__} must be pairs of tensors of one shape, or dicts of tensors with "
                f"{LABELS!r} ({error})",
                "let each item be (input, target), of tensors or numbers; convert images with a transform such as "
                "ToTensor",
            ) from None
        return _as_tensors(_as_tree(inputs), "inputs"), _as_tensors(_as_tree(targets), "targets")

    records = LoopRecords(**_digest_all(owner_key, read, len(data)), examples=len(data), key=owner_key)
    records.take(np.arange(min(8, len(data))))  # detects random transforms early
    return records


def _as_tensors(given: Any, what: str) -> Tree:
    """Tensors on the CPU, in the same tuples or dicts. Integer targets become int64, which torch's losses require."""
    if isinstance(given, dict):
        named = {LABELS: "targets"}
        return {name: _as_tensors(one, named.get(name, what)) for name, one in given.items()}  # type: ignore[return-value]
    if isinstance(given, tuple):
        return tuple(_as_tensors(one, what) for one in given)  # type: ignore[return-value]
    value: Any = given
    try:
        if isinstance(given, np.ndarray):
            value = torch.as_tensor(given)
        found = undense(value)
    except (TypeError, ValueError) as error:  # a type or a stride that torch does not know
        found = f"an array of {given.dtype} ({error})"
    if found is not None:
        raise SfumatoError(f"{what} must be tensors or arrays, got {found}", f"give {_KINDS}")
    whole = what == "targets" and value.dtype in (torch.int8, torch.int16, torch.int32)
    return value.detach().cpu().to(torch.int64 if whole else value.dtype)


def _as_tree(collated: Any) -> Tree:
    """Converts lists, which collating makes of tuples, to tuples, and mappings to dicts."""
    if isinstance(collated, Mapping):
        return {name: _as_tree(one) for name, one in collated.items()}
    return tuple(map(_as_tree, collated)) if isinstance(collated, list) else collated


def _digest_all(owner_key: bytes, read: Callable[[np.ndarray], tuple[Tree, Tree]], count: int) -> dict[str, Any]:
    """Reads all records once. Returns the fields of `LoopRecords` with their digests and the range of targets.

    **Guarantee.** The owner's list recognises the same records in any order, and the same inputs with other targets or
    as numbers of another type: a run that predicts something else about the same people is counted with this one.
    """
    whole, inputs_alone, sums, ends, odd = [], [], [], [], []
    for rows in np.array_split(np.arange(count), max(1, count // 256)):
        inputs, targets = read(rows)
        whole.append(_codes(owner_key, inputs, targets))
        sums.append(_sums(inputs, targets))
        inputs_alone.append(_codes(owner_key, tree_map(lambda one: one if one.is_complex() else one.double(), inputs)))
        if isinstance(targets, Tensor) and targets.dim() == 1 and targets.dtype == torch.int64:
            ends += [int(targets.min()), int(targets.max())]
        odd += rows[~_finite(len(rows), inputs, targets)].tolist()
    if odd:
        raise SfumatoError(
            f"{len(odd)} of {count} records hold numbers that are not finite, the first is record {odd[0]}: their "
            "gradients would be left out",
            "correct these records or leave them out",
        )
    codes = np.concatenate(whole)
    alone = np.concatenate(inputs_alone)
    return {
        "count": count,
        "read": read,
        "codes": codes,
        "sums": np.concatenate(sums),
        "identifiers": np.concatenate([codes, alone], axis=1),
        "data_digests": (_material(owner_key, codes), _material(owner_key, alone)),
        **_ends(ends),
    }


def _ends(targets: list[int]) -> dict[str, int]:
    return {"smallest": min(targets), "largest": max(targets)} if targets else {}


def _finite(count: int, *trees: Tree) -> np.ndarray:
    """Whether all numbers of each record are finite, bool (count,)."""
    parts = [one.reshape(count, -1).isfinite().all(1) for tree in trees for one in tree_tensors(tree)]
    return torch.stack(parts).all(0).numpy()


def _codes(owner_key: bytes, *trees: Tree) -> np.ndarray:
    """uint8 (b, 16): HMACs of each record's bytes, types and shapes."""
    parts = [one.contiguous() for tree in trees for one in tree_tensors(tree)]
    header = repr([(str(one.dtype), tuple(one.shape[1:])) for one in parts]).encode()
    rows = [one.reshape(len(one), -1).view(torch.uint8).numpy() for one in parts]
    codes = (
        hmac.digest(owner_key, b"own record" + header + b"".join(part[row].tobytes() for part in rows), "sha256")
        for row in range(len(rows[0]))
    )
    return np.frombuffer(b"".join(code[:_CODE] for code in codes), np.uint8).reshape(-1, _CODE)


def _sums(*trees: Tree) -> np.ndarray:
    """uint64 (b,): the sum of each record's 4-byte words, each times an odd number of its place, modulo 2^64.

    It tells a change as `_codes` does, and is faster, but somebody who wants to hide a change can. The factors have 64
    bits, so that changes of the first bits of words alone, such as signs, do not cancel out.
    """
    total = np.zeros((), np.uint64)
    for place, one in enumerate(tensor for tree in trees for tensor in tree_tensors(tree)):
        content = one.contiguous().reshape(len(one), -1).view(torch.uint8).numpy()
        if odd := -content.shape[1] % 4:
            content = np.pad(content, ((0, 0), (0, odd)))
        factors = np.random.default_rng(place).integers(2**63, size=content.shape[1] // 4, dtype=np.uint64)
        total = total + content.view(np.uint32).astype(np.uint64) @ (2 * factors + 1)
    return total


def _material(owner_key: bytes, codes: np.ndarray) -> str:
    """A digest that identifies the same records in any order."""
    rising = np.sort(np.ascontiguousarray(codes).view(f"S{_CODE}").reshape(-1))
    return hmac.new(owner_key, b"own material" + rising.tobytes(), hashlib.sha256).hexdigest()
