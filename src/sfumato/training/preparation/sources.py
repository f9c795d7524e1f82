"""Sources from data in Python, opened with the owner's key, and a summary of the records for the owner."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from sfumato._cards import Detail
from sfumato.data import Source, find_known, open_source, own_codes
from sfumato.data.record_users import LENGTH
from sfumato.experiment import users
from sfumato.privacy import FixedOrder, PrivacyPlan
from sfumato.privacy.planning import remarks
from sfumato.randomness import owner_key


def open_data(given: Any, **facts: Any) -> Any:
    """Opens data from Python (`open_source`); returns a spelling or an opened source unchanged.

    Args:
        facts: the declarations for data from Python.
    """
    return given if isinstance(given, (str, Source)) else open_source(given, owner_key=owner_key(), **facts)


def from_arrays(
    images: Any,
    labels: Any,
    test_images: Any = None,
    test_labels: Any = None,
    *,
    classes: Any = None,
    whose: Any = None,
    test_whose: Any = None,
    **facts: Any,
) -> Source:
    """Opens arrays or tensors as a source, with the owner's key.

    Args:
        images: uint8, or numbers in [0, 1]: arrays (N, H, W) or (N, H, W, C), tensors (N, C, H, W), C = 1 or 3.
        labels: whole numbers from 0 or names (N,); or (N, L) of 0 and 1 for several labels.
        test_images, test_labels: the test part; without it a keyed hash of each image, or of its user, splits them.
        classes: the declared names of the classes.
        whose: the user of each image, text or whole numbers (N,).
        test_whose: the user of each test image.
        facts: further declarations, as for `open_source`: `examples`, `users`, `size`, `public` and so on.

    **Guarantee.** That of `open_source`.

    Errors: `SfumatoError` for invalid data.

    >>> import numpy as np
    >>> images = np.random.default_rng(0).integers(0, 256, (200, 8, 8), np.uint8)
    >>> from_arrays(images, np.arange(200) % 2, examples=150, classes=["cat", "dog"]).examples
    150
    """
    part, test_part = ("", {}) if test_images is None else ("_train", {"x_test": test_images, "y_test": test_labels})
    given = {f"x{part}": images, f"y{part}": labels, f"users{part}": whose, "users_test": test_whose, **test_part}
    known = {name: one for name, one in given.items() if one is not None}
    return open_source(known, owner_key=owner_key(), classes=classes, **facts)


def from_dataset(data: Any, test: Any = None, **facts: Any) -> Source:
    """Opens a data set as a source, with the owner's key.

    Args:
        data: a map-style `torch.utils.data.Dataset` (torchvision's are such) whose items are pairs (image, label); a
            `Dataset` or `DatasetDict` of Hugging Face's `datasets`; or a pandas DataFrame with the columns path, label
            and optionally user. It must give the same record each time, without random transforms.
        test: the test part, of the same kind; without it a keyed hash splits the records.
        facts: declarations, as for `open_source`: `examples`, `classes`, `size`, `public` and so on.

    **Guarantee.** That of `open_source`.

    Errors: `SfumatoError` for invalid data.
    """
    return open_source(data if test is None else (data, test), owner_key=owner_key(), **facts)


def notes(source: Source, plan: PrivacyPlan) -> Iterator[str]:
    """Notes on how the records were read, what the plan means for one person, and unless the data are published on
    copies among them, and on the training records of each class. For the owner alone."""
    yield from (f"note: {note}" for note in source.notes)
    if not source.published:
        yield from (f"note: {note}" for note in copies(source))
    if (unused := unassigned(source, plan)) is not None:
        yield f"note: {unused}"
    if (person := users.person_note(source, plan)) is not None:
        yield Detail(f"note: {person}")
    if not (source.published or source.cache is not None or source.multilabel or source.next_words):
        yield Detail(f"note: read {per_class(source)} (private figures)")


def unassigned(source: Source, plan: PrivacyPlan) -> str | None:
    """A note on training records beyond the bins of an order by position; None if every record is in a step.

    **Guarantee.** The number is a private figure: it is shown on the terminal and written to no file.
    """
    rule, records = plan.participation, len(source.train)
    if not isinstance(rule, FixedOrder) or rule.assignment == "random":
        return None
    within = min(records, rule.batch_size * min(plan.steps, rule.bins(plan.population)))
    if within == records:
        return None
    return (
        f"{records - within} of the {records} training records are in no step of the plan and are not used (a private "
        "figure: keep it to yourself)"
    )


def copies(source: Source) -> list[str]:
    """Notes on test records that are copies of training records, and on records that have copies with another label.

    A copy has the same stored bytes, or the same pixels or words (`own_codes`).
    """
    parts, key = (source.train, source.test), owner_key()
    codes = [own_codes(part, key) for part in parts]
    what = "texts" if source.tokens is not None else "images"
    private = "" if source.public else " (a private figure)"
    found = []
    if again := int(find_known(codes[1], codes[0]).sum()):
        found.append(
            f"{again:,} of {len(source.test):,} test {what} are copies of training {what}{private}, so the test "
            "measures memory as well: remove them"
        )
    if source.next_words:
        return found
    _, kinds = np.unique(np.concatenate([part.labels for part in parts]), axis=0, return_inverse=True)
    same = np.concatenate(codes)[:, LENGTH:].copy().view(f"V{LENGTH}").reshape(-1)
    pairs = np.unique(np.stack([np.unique(same, return_inverse=True)[1], kinds.reshape(-1)]), axis=1)
    if several := int((np.bincount(pairs[0]) > 1).sum()):
        found.append(f"{several:,} {what} have copies with another label{private}: keep one of each")
    return found


def class_counts(source: Source) -> dict[str, int]:
    """The number of training records of each class. **Private.**"""
    counts = np.bincount(source.train.labels, minlength=len(source.classes)).tolist()
    return {str(name): count for name, count in zip(source.classes, counts, strict=True)}


def unlearnt(source: Source, plan: PrivacyPlan) -> dict[str, int]:
    """The classes that the plan's noise hides, with their numbers of training records. **Private.**"""
    return {} if source.multilabel or source.next_words else remarks.unlearnt(plan, class_counts(source))


def per_class(source: Source) -> str:
    """The number of training records of each class; with many classes only of the first ones and the rarest.

    >>> import numpy as np
    >>> from sfumato.data import open_source
    >>> images, labels = np.zeros((60, 8, 8), np.uint8), np.arange(60) // 40
    >>> per_class(open_source((images, labels, images, labels), owner_key=bytes(32)))
    '60 training images: 0 40, 1 20'
    """
    counts = class_counts(source)
    named = [f"{name} {count:,}" for name, count in counts.items()]
    what = "training texts" if source.tokens is not None else "training images"
    if len(named) > (shown := remarks.SHOWN):
        rarest = min(counts, key=counts.__getitem__)
        rest = f"and {len(named) - shown + 2} more classes, the rarest {rarest} {counts[rarest]:,}"
        named = [*named[: shown - 2], rest]
    return f"{len(source.train):,} {what}: {', '.join(named)}"
