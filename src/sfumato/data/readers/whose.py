"""Whose record each one is, where a rule says it in place of the data (`user_from`): here the class."""

from __future__ import annotations

from collections.abc import Iterable

from sfumato._checks import SfumatoError
from sfumato.data.declared import Declared
from sfumato.data.identity.owners import SEPARATOR

BY_FOLDER = "folder"
"""`user_from` where a folder in the class folder says whose images it holds."""
BY_CLASS = "class"
"""`user_from` where each class is one user: all of its records are theirs, and its name is the user's."""


def check_by_class(declared: Declared, where: str, *, has_own_split: bool, own: str | None = None) -> None:
    """Refuse classes as users where there is not one for each record, or where they could not be learnt.

    Args:
        where: what to call the data set in a refusal.
        has_own_split: whether it comes in two parts.
        own: in what the data say themselves whose records they are, if they do.
    """
    rule = f"`user_from={BY_CLASS}`"
    if own is not None:
        raise SfumatoError(f"{where} has the {own}, and {rule} is given", "leave one of them out")
    if declared.labels.label_columns is not None:
        raise SfumatoError(
            f"{rule} makes each class one user, and `label_columns` give an image several", "leave one of them out"
        )
    if not has_own_split and not declared.purpose.open_set:
        raise SfumatoError(
            f"{rule} makes each class one user, and the split by user puts it whole in one part of {where}, so that a "
            "classifier would be tested on classes that it has not met",
            "leave it out, or make the train and test parts yourself; or train an embedding, which is to tell people "
            "apart that it has not met (sfumato embed, or open_source with open_set=True)",
        )


def refuse_several(classes: Iterable[str]) -> None:
    """Refuse a class that would be several users, as each is one."""
    for name in classes:
        if SEPARATOR in name:
            raise SfumatoError(
                f"by `user_from={BY_CLASS}` each class is one user, and {name!r} names several, as {SEPARATOR} "
                "separates them",
                "rename the class",
            )
