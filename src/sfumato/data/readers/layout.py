"""Folders on disk: their contents, and the option that reads them. No image is opened."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import NoReturn

from sfumato._checks import SfumatoError
from sfumato.data import paths
from sfumato.data.classes import SHOWN, part_by_name
from sfumato.data.decoding import is_image_file
from sfumato.data.record_users import BY_CLASS, BY_FOLDER

PARTS = ("train", "test")
"""Names of the folders of the two parts."""
_SIDECARS = frozenset({"thumbs.db", "desktop.ini", "__macosx", "@eadir", "dicomdir"})


@dataclass(frozen=True)
class Layout:
    """The layout of a folder of images, judged by the first folder on each level.

    Args:
        root: the folder, or the folder in it that holds the images' folders: PATH/train if it is the only one.
        levels: depth of folders down to the first image, from the root or from its parts.
        has_parts: whether the root contains the parts.
    """

    root: Path
    levels: int
    has_parts: bool

    @property
    def suggested_user_from(self) -> str | None:
        """The value of `user_from` that fits an embedding; None if none does."""
        return {1: BY_CLASS, 2: BY_FOLDER}.get(self.levels)

    @property
    def pattern(self) -> str:
        """The layout as a path pattern."""
        names = {BY_CLASS: "PERSON/", BY_FOLDER: "CLASS/USER/"}.get(self.suggested_user_from or "", "")
        return f"PATH/{'train/' if self.has_parts else ''}{names}IMAGE"


def layout_of(path: str) -> Layout:
    """The layout of a folder, by the names of its folders and by which of them hold folders or images."""
    root = existing_folder(path)
    folders = subfolders(root)
    if [folder.name for folder in folders] == [PARTS[0]] and subfolders(folders[0]):
        return Layout(folders[0], _levels(folders[0]), False)
    holders = [folder for folder in folders if subfolders(folder)]
    has_parts = bool(parts_of(holders))
    return Layout(root, max(0, _levels(root) - has_parts), has_parts)


def parts_of(folders: Sequence[Path]) -> dict[str, Path]:
    """The folders of train, test and validation under any of their names; empty if ambiguous.

    >>> sorted(parts_of([Path("p/Train"), Path("p/val"), Path("p/test")]).items())
    [('test', PosixPath('p/test')), ('train', PosixPath('p/Train')), ('validation', PosixPath('p/val'))]
    >>> parts_of([Path("p/train"), Path("p/cat")]), parts_of([Path("p/test"), Path("p/tests")])
    ({}, {})
    """
    parts: dict[str, Path] = {}
    for folder in folders:
        part = part_by_name(folder.name)
        if part is None or part in parts:
            return {}
        parts[part] = folder
    return parts if len(parts) > 1 and "train" in parts else {}


def refuse_unclear_classes(folders: Sequence[Path], where: str, *, by_folder: bool) -> None:
    """Refuses folders that hold folders of the same names, as in PATH/PATIENT/CLASS: either level may be the classes.

    Args:
        by_folder: whether the inner folders were declared to be users. Then only fewer names than folders are refused.
    """
    held: list[set[str]] = []
    for folder in folders:
        held.append({inner.name for inner in subfolders(folder)})
        if not held[-1]:
            return
    names = set().union(*held)
    repeated = len(names) < len(held) and sum(map(len, held)) >= 2 * len(names)
    same = not by_folder and len(held) > 1 and all(inner == names for inner in held)
    if len(names) < 2 or not (repeated or same):
        return
    first = ", ".join(map(repr, sorted(names)[:SHOWN])) + (", ..." if len(names) > SHOWN else "")
    raise SfumatoError(
        f"the {len(held):,} folders of {where} hold folders of the same names ({first}), so either level may be the "
        "classes",
        "if these names are the classes, give `class_from=folder:2`, and with it `user_from=folder` and `unit=user` if "
        "each outer folder is one person's; if the outer folders are the classes, give `class_from=folder:1`",
    )


def refuse_without_users(spec: str = "", command: str = "embed") -> NoReturn:
    """Refuses a source without users. For a folder, the error suggests a command that works.

    Args:
        spec: spelling of the source, if known.
        command: the command and its options: "embed", or "train --unit user".
    """
    kind, _, argument = spec.partition(":")
    if kind == "folder":
        raise SfumatoError(f"{spec} does not name the user of each image", _remedy_of_folder(argument, command))
    raise SfumatoError(
        "the source does not name the user of each record",
        "give a table with the column user, an archive with users_train, or a folder with `user_from`; where each "
        "class is one user, `user_from=class` says so of all three",
    )


def _remedy_of_folder(path: str, command: str) -> str:
    """A remedy from the folder's layout. Folders are listed, no image is opened."""
    layout = layout_of(path)
    refuse_unclear_classes(subfolders(layout.root), f"folder {path!r}", by_folder=True)
    rule, embeds = layout.suggested_user_from, command == "embed"
    if rule == BY_CLASS and not embeds:  # a classifier's classes are no users
        return (
            f"its folders are {layout.pattern.replace('PERSON', 'CLASS')}: give each user a folder in every class, "
            f"{layout.pattern.replace('PERSON', 'CLASS/USER')}, and `user_from=folder`; or a regular expression that "
            "finds the user in a file's name"
        )
    if rule is None:
        folders = "person, PATH/PERSON/IMAGE, and give `user_from=class`"
        return f"make a folder for each {folders if embeds else 'user, PATH/CLASS/USER/IMAGE, with `user_from=folder`'}"
    verb, *options = command.split(" ", 1)
    whole = " ".join(["sfumato", verb, shlex.quote(f"folder:{layout.root}"), *options, f"--user-from {rule}"])
    whose = "class is one person" if rule == BY_CLASS else "inner folder is one user's"
    return f"its folders are {layout.pattern}: if each {whose}, give `user_from={rule}`, as in {whole}"


def subfolders(folder: Path) -> list[Path]:
    """The folders in a folder, by name."""
    return [folder / item.name for item in entries(folder) if _is_folder(folder, item)]


def _is_folder(folder: Path, item: os.DirEntry[str]) -> bool:
    """`is_folder` for an entry of a listing. Only links need a system call."""
    return is_folder(folder / item.name) if item.is_symlink() else item.is_dir(follow_symlinks=False)


def is_folder(item: Path) -> bool:
    """Whether the path is a folder, or a link to one."""
    return stat.S_ISDIR(status(item).st_mode)


def status(item: Path) -> os.stat_result:
    """`os.stat` of a path. Errors name it."""
    try:
        return paths.status(item)
    except FileNotFoundError:
        raise SfumatoError(f"link {str(item)!r} is broken", "correct it, or remove it") from None
    except OSError as problem:
        reason = problem.strerror or problem
        raise SfumatoError(f"{str(item)!r} cannot be accessed ({reason})", "correct that, or remove it") from None


def listing(folder: Path) -> list[Path]:
    """The contents of a folder by name, without hidden files and sidecar files of Windows and macOS."""
    return [folder / item.name for item in entries(folder)]


def entries(folder: Path) -> list[os.DirEntry[str]]:
    """The contents of a folder as directory entries."""
    try:
        with os.scandir(folder) as scan:
            items = [item for item in scan if not item.name.startswith(".") and item.name.lower() not in _SIDECARS]
    except OSError as problem:
        reason = problem.strerror or problem
        raise SfumatoError(f"folder {str(folder)!r} cannot be listed ({reason})", "check its permissions") from None
    return sorted(items, key=attrgetter("name"))


def existing_folder(path: str) -> Path:
    """The folder at this path. Refuses other paths."""
    root = paths.expanded(path)
    if not os.path.exists(root):
        raise SfumatoError(f"folder {str(root)!r} does not exist", "correct the path after folder:")
    if not root.is_dir():
        remedy = "give the folder that holds the class folders, or use npz: or csv:"
        raise SfumatoError(f"folder {str(root)!r} is a file", remedy)
    return root


def _levels(folder: Path) -> int:
    """Depth of folders down to the first one that holds an image, or no folder."""
    inner = subfolders(folder)
    if not inner or any(is_image_file(folder / item.name) for item in entries(folder) if not _is_folder(folder, item)):
        return 0
    return 1 + _levels(inner[0])
