"""What may stand beside the images and labels of an archive: time stamps, users, and the users' groups."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

import numpy as np

from sfumato._checks import SfumatoError
from sfumato.data.classes import refuse_unwritable

_SINGULAR = {"users": "user", "groups": "group"}


def named(members: dict[str, str], sides: Sequence[str], where: str) -> dict[str, str]:
    """The members of an archive that are such columns, as `users_train` and the like, whichever way they are spelt.

    Args:
        members: the members' names by the arrays'.
        sides: what follows a column's name: "_train" and "_test", or nothing; time stamps are of the first alone.
        where: what to call the archive in an error.
    """
    stamps = f"time{sides[0]}"
    found = {stamps: members[stamps]} if stamps in members else {}
    for side in sides:
        for name, singular in _SINGULAR.items():
            spelt = [known for known in (name + side, singular + side) if known in members]
            if len(spelt) > 1:
                raise SfumatoError(f"{where} has both {spelt[0]} and {spelt[1]}", "leave one of them out")
            if spelt:
                found[name + side] = members[spelt[0]]
        if f"groups{side}" in found and f"users{side}" not in found:
            raise SfumatoError(f"{where} has groups{side} and no users{side}", f"save users{side} as well")
    first, *others = (f"users{side}" for side in sides)
    for other in others:
        if other in found and first not in found:
            raise SfumatoError(f"{where} has {other} and no {first}", f"save {first} as well")
    return found


def checked(column: np.ndarray, name: str, where: str, images: int) -> np.ndarray:
    """A column (N,): time stamps as float64 or datetime64[us], users and groups as text."""
    what = f"{name} of {where}"
    return _times(column, what, images) if name.startswith("time") else _texts(column, what, images)


def _times(times: np.ndarray, what: str, images: int) -> np.ndarray:
    if times.shape != (images,) or times.dtype.kind not in "iufM":
        raise SfumatoError(
            f"{what} must be {images} numbers or datetime64, one for each image, got {times.dtype} {times.shape}",
            "save numpy.array([...], 'datetime64[s]'), or numbers",
        )
    if times.dtype.kind == "M":
        years = times.astype("datetime64[Y]").astype(np.int64) + 1970
        odd = np.isnat(times) | (years < datetime.MINYEAR) | (years > datetime.MAXYEAR)
    else:
        with np.errstate(over="ignore"):
            times = times.astype(np.float64)
        odd = ~np.isfinite(times)
    if odd.any():
        raise SfumatoError(
            f"{what} has no date of the years 1 to 9999 or finite number for image {np.flatnonzero(odd)[0]}",
            "give its time, or take the image out",
        )
    return times.astype("datetime64[us]") if times.dtype.kind == "M" else times


def _texts(texts: np.ndarray, what: str, images: int) -> np.ndarray:
    """Whole numbers become their decimal digits, so that an archive's users are those of a table."""
    if texts.shape != (images,) or texts.dtype.kind not in "iuU":
        raise SfumatoError(
            f"{what} must be {images} whole numbers or texts, one for each image, got {texts.dtype} {texts.shape}",
            "save numpy.array(['ann', 'bob', ...]), or numbers",
        )
    texts = texts.astype(np.str_)
    for name in np.unique(texts).tolist():
        if not name.strip():
            odd = np.flatnonzero(texts == name)[0]
            raise SfumatoError(f"{what} has no name for image {odd}", "give it one, or take the image out")
        refuse_unwritable(name, f"{what}: the name")
    return texts
