"""folder:PATH - image files in one folder for each class. Folders are listed here; no image is opened."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path

from sfumato._checks import SfumatoError
from sfumato._files import path_errors
from sfumato.data import paths
from sfumato.data.classes import SHOWN, notes_on_parts, part_by_name, refuse_unwritable, test_part, to_nfc, to_nfd
from sfumato.data.declared import Order
from sfumato.data.decoding import is_image_file
from sfumato.data.readers.dicom import BY_PATIENT
from sfumato.data.readers.files import load_files
from sfumato.data.readers.listing import Listing, ListingBuilder
from sfumato.data.record_users import BY_CLASS, BY_FOLDER, refuse_several
from sfumato.data.records import Files, Identities, TextBuffer
from sfumato.data.source import Parts

PARTS = ("train", "test")
"""Names of the folders of the two parts."""
_SIDECARS = frozenset({"thumbs.db", "desktop.ini", "__macosx", "@eadir", "dicomdir"})
_LAYOUT = "make one folder for each class, such as PATH/cat and PATH/dog, or PATH/train/cat and PATH/test/cat"
_OF_USERS = (
    "make a folder for each user in each class folder, such as PATH/cat/ann, or PATH/train/cat/ann, or give "
    "`user_from=class` if each class is one user, or leave it out"
)
_LEVEL = re.compile(r"folder:([1-9])")


def load(path: str, order: Order) -> Parts:
    """Reads class folders: PATH/CLASS/*.png, or PATH/train/CLASS/*.png with PATH/test/CLASS/*.png.

    One level of class folders is split by a keyed hash of each file's bytes. Hidden files and the sidecar files of
    Windows and macOS are skipped. Files without an image's name are skipped with a note; their number reveals nothing
    about a record. No file may occur twice through links. Records are ordered by folder and then by file name.

    With `user_from` every file has a user, and the keyed hash is of the user. "folder": the name of the user's folder
    in the class folder. "class": the class. "dicom": the patient identifier (`load_files`). Otherwise a regular
    expression searched in the file's name, whose first group is the user, or the whole match if it has no group.

    With `class_from` "folder:2" the class is the name of the second folder on the way from PATH or its parts to the
    file, as in PATH/PATIENT/CLASS/*.png; likewise for other levels. Otherwise it is a regular expression for file
    names, as for users. In both cases the user of "folder" is the first folder. Without `class_from`, folders that
    hold folders of the same names are refused, since either level may be the classes.
    """
    declared = order.declared
    user_from, class_from = declared.people.user_from, declared.loading.class_from
    level = _LEVEL.fullmatch(class_from or "folder:1")
    others = "folder if users have their own folders, or class if each class is one user"
    by_name = user_from not in (None, BY_CLASS, BY_FOLDER, BY_PATIENT)
    reading = _Reading(
        level=int(level[1]) if level else 0,
        by_folder=user_from == BY_FOLDER,
        class_from=None if level else _pattern("class_from", class_from, "'class([01])', or a level such as folder:2"),
        user_from=_pattern("user_from", user_from, rf"'patient-(\d+)_', or {others}") if by_name else None,
    )
    root = paths.expanded(path)
    where, shallow = f"folder {str(root)!r}", reading.level == 1
    with path_errors(where, "correct the path after folder:"):
        if not root.is_dir():
            root.stat()
            remedy = "give the folder that holds the class folders, or use npz: or csv:"
            raise SfumatoError(f"{where} is a file", remedy)
    folders = subfolders(root)
    # "train" may be a class of vehicles. It is a part only if it contains class folders itself.
    holders = [folder for folder in folders if reading.holds_classes(folder)]
    parts, notes = parts_of(holders), ()
    if parts:
        notes = notes_on_parts(parts, where)
        read = {"train": parts["train"], "test": parts[test_part(parts)]}
        folders = [folder for folder in folders if folder in read.values() or folder not in parts.values()]
        parts = read
    else:
        parts = {folder.name: folder for folder in holders if folder.name in PARTS}
    if (shallow and not folders) or (not parts and {folder.name for folder in folders} == {*PARTS}):
        raise SfumatoError(f"{where} has no class folders", _OF_USERS if reading.by_folder else _LAYOUT)
    if shallow and user_from != BY_CLASS and class_from is None:
        top = [inner for part in parts.values() for inner in subfolders(part)] or folders
        if not {to_nfc(inner.name) for inner in top} <= {*(declared.labels.classes or ())}:
            _refuse_unclear_classes(top, where, by_folder=reading.by_folder)
    if parts:
        closed = shallow and declared.labels.classes is None and not declared.purpose.open_set
        _check_parts(where, folders, parts, closed=closed)
        for item in listing(root) if shallow else ():
            if not is_folder(item) and is_image_file(item):
                raise _outside(item)
    found = reading.listing({name: parts[name] for name in PARTS} if parts else {None: root})
    return load_files(found, order, where=where, notes=(*notes, *reading.notes))


@dataclass(frozen=True, kw_only=True)
class _Reading:
    """How the class and the user of each file are found.

    Attributes:
        level: level of the folder that names the class, from 1; 0 if the file's name does.
        by_folder: whether a folder names the user: the one in the class folder, or with another level the first one.
        class_from, user_from: the patterns of file names, if given.
        strays: files without an image's name.
        inner: folders below those that name class and user.
    """

    level: int
    by_folder: bool
    class_from: re.Pattern[str] | None
    user_from: re.Pattern[str] | None
    strays: list[Path] = field(default_factory=list)
    inner: list[Path] = field(default_factory=list)

    @property
    def depth(self) -> int:
        """The fewest folders on the way to a file."""
        return self.level + self.by_folder if self.level < 2 else self.level

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on folders within class folders, and on files that are not images."""
        notes: list[str] = []
        if self.inner and self.level == 1 and not self.by_folder:
            notes.append(
                f"folders within class folders are read with their class ({_listed(self.inner)}); if they are "
                "users' folders, give `user_from=folder`"
            )
        if self.strays:
            notes.append(f"files without an image's extension are ignored: {_listed(self.strays)}")
        return tuple(notes)

    def holds_classes(self, folder: Path) -> bool:
        """Whether a folder may be a part: it contains class folders, instead of being one."""
        inner = subfolders(folder)
        return self.level != 1 or (any(map(subfolders, inner)) if self.by_folder else bool(inner))

    def listing(self, parts: Mapping[str | None, Path]) -> Listing:
        """The images in the folder of each part; the key None means both parts."""
        builder, files, identities = ListingBuilder(), TextBuffer(), Identities()
        for part, root in parts.items():
            for file, file_stat, levels in self._files(root, ()):
                label = levels[self.level - 1] if self.level else self._named(file, "class_from")
                user = levels[1 if self.level == 1 else 0] if self.by_folder else self._named(file, "user_from")
                refuse_unwritable(str(label), "class name")
                refuse_unwritable(str(file), "image", longest=None)
                if user is not None:
                    refuse_several(user, f"image {str(file)!r}")
                builder.add(str(label), part=part, user=user)
                files.append(str(file))
                identities.add(file, file_stat)
        identities.refuse_repeated(lambda place: f"image {files[place]!r}")
        return builder.listing(Files(files))

    def _files(self, folder: Path, levels: tuple[str, ...]) -> Iterator[tuple[Path, os.stat_result, tuple[str, ...]]]:
        """The images at any depth, with their `os.stat` and the names of the folders on the way."""
        empty = True
        for item in listing(folder):
            item_stat = _status(item)
            if stat.S_ISDIR(item_stat.st_mode):
                if len(levels) >= self.depth:
                    if self.by_folder and self.level == 1:
                        problem = f"user's folder {str(folder)!r} holds the folder {item.name!r}"
                        raise SfumatoError(problem, "put images directly in users' folders, or correct `class_from`")
                    if item.is_symlink():
                        problem = f"folder {str(folder)!r} holds the link {item.name!r} to a folder"
                        raise SfumatoError(problem, "put the folder itself there: links may form cycles")
                    self.inner.append(item)
                yield from self._files(item, (*levels, item.name))
                empty = False
            elif not is_image_file(item):
                self.strays.append(item)
            elif len(levels) < self.depth:
                raise _outside(item)
            else:
                empty = False
                yield item, item_stat, levels
        if empty:
            raise SfumatoError(f"folder {str(folder)!r} holds no image", "add images, or remove the folder")

    def _named(self, file: Path, option: str) -> str | None:
        """The text that the option's pattern finds in the file's name; None without a pattern."""
        pattern: re.Pattern[str] | None = getattr(self, option)
        if pattern is None:
            return None
        name = to_nfc(file.name)
        match = pattern.search(name)
        text = match and match[1 if pattern.groups else 0]
        if not text:
            raise SfumatoError(
                f"the name of {str(file)!r} does not name its {option[:-5]} by `{option}={pattern.pattern}`",
                "correct the pattern, rename the file, or remove it",
            )
        return text if name == file.name else to_nfd(text)


def _outside(file: Path) -> SfumatoError:
    """The error for an image outside the folders that name its class or user."""
    remedy = "move it to the folder of its class or user, or correct `class_from` and `user_from`"
    return SfumatoError(f"{str(file)!r} is in too few folders", remedy)


def _listed(places: list[Path]) -> str:
    """The first of several paths, and the number of others.

    >>> _listed([Path("data/cat/ann"), Path("data/dog/bob")])
    'cat/ann and 1 other'
    """
    first, more = places[0], len(places) - 1
    others = f" and {more} other{'s' if more > 1 else ''}" if more else ""
    name = f"{first.parent.name}/{first.name}"
    return f"{name if name.isprintable() else repr(name)}{others}"


def _pattern(option: str, text: str | None, example: str) -> re.Pattern[str]:
    """The regular expression that an option gives."""
    try:
        return re.compile(to_nfc(str(text)))
    except re.error as error:
        problem = f"`{option}={text}` is not a regular expression ({error})"
        raise SfumatoError(problem, f"give one such as {example}") from None


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


def _refuse_unclear_classes(folders: Sequence[Path], where: str, *, by_folder: bool) -> None:
    """Refuses folders that hold folders of the same names, as in PATH/PATIENT/CLASS: either level may be the classes.

    Args:
        by_folder: whether the inner folders were declared to be users. Then only fewer names than folders are refused.
    """
    held = [{inner.name for inner in subfolders(folder)} for folder in folders]
    if not all(held):
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


def _check_parts(where: str, folders: list[Path], parts: dict[str, Path], *, closed: bool) -> None:
    """Refuses folders beside the parts, a missing part, and if `closed`, classes of one part alone."""
    for folder in folders:
        if folder not in parts.values():
            raise SfumatoError(
                f"{where} holds {folder.name!r} beside {' and '.join(sorted(parts, reverse=True))}",
                "keep the two folders train and test, each with class folders, and move the others elsewhere",
            )
    for name in PARTS:
        if name not in parts:
            raise SfumatoError(
                f"{where} has no {name!r} beside {next(iter(parts))!r}",
                f"add {name} with the same class folders, or give only the class folders, which are then split",
            )
    classes = {name: {to_nfc(folder.name) for folder in subfolders(part)} for name, part in parts.items()}
    only = sorted(classes["train"] ^ classes["test"])
    if only and closed:
        holder, other = ("train", "test") if only[0] in classes["train"] else ("test", "train")
        raise SfumatoError(
            f"class {only[0]!r} of {where} is in {holder} and not in {other}",
            f"add it to {other}, or declare the classes",
        )


def subfolders(folder: Path) -> list[Path]:
    """The folders in a folder, by name. Only links need a system call."""
    return [
        folder / item.name
        for item in _entries(folder)
        if (is_folder(folder / item.name) if item.is_symlink() else item.is_dir(follow_symlinks=False))
    ]


def is_folder(item: Path) -> bool:
    """Whether the path is a folder, or a link to one."""
    return stat.S_ISDIR(_status(item).st_mode)


def _status(item: Path) -> os.stat_result:
    """`os.stat` of a path. Errors name it."""
    with path_errors(repr(str(item)), "correct the link, or remove it"):
        return paths.status(item)


def listing(folder: Path) -> list[Path]:
    """The contents of a folder by name, without hidden files and sidecar files of Windows and macOS."""
    return [folder / item.name for item in _entries(folder)]


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """The contents of a folder as directory entries."""
    with path_errors(f"folder {str(folder)!r}", "correct the path"), os.scandir(folder) as scan:
        items = [item for item in scan if not item.name.startswith(".") and item.name.lower() not in _SIDECARS]
    return sorted(items, key=attrgetter("name"))
