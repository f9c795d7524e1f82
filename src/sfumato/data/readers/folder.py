"""folder:PATH - image files in one folder for each class."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from sfumato._checks import SfumatoError
from sfumato.data.classes import (
    Spellings,
    notes_on_parts,
    part_by_name,
    refuse_unwritable,
    test_part,
    to_nfc,
    to_nfd,
)
from sfumato.data.declared import Declared, Order
from sfumato.data.identity.record_users import BY_CLASS, BY_FOLDER
from sfumato.data.images.decoding import is_image_file
from sfumato.data.parts import Parts
from sfumato.data.readers.dicom import BY_PATIENT
from sfumato.data.readers.files import load_files
from sfumato.data.readers.layout import (
    PARTS,
    existing_folder,
    is_folder,
    listing,
    parts_of,
    status,
    subfolders,
)
from sfumato.data.readers.listing import Listing, ListingBuilder
from sfumato.data.stored import Files, Identities, TextBuffer

_LAYOUT = "make one folder for each class, such as PATH/cat and PATH/dog, or PATH/train/cat and PATH/test/cat"
_OF_USERS = "make a folder for each user in each class folder, such as PATH/cat/ann, or PATH/train/cat/ann"
_OTHERWISE = "give `user_from=class` if each class is one user, or leave it out"
UNDERSTOOD = ("user_from", "skip_unreadable")


def load(path: str, order: Order) -> Parts:
    """Reads class folders: PATH/CLASS/*.png, or PATH/train/CLASS/*.png with PATH/test/CLASS/*.png.

    One level of class folders is split by a keyed hash of each file's bytes. Hidden files and the sidecar files of
    Windows and macOS are skipped. Files without an image's name are skipped with a note; their number reveals nothing
    about a record. No file may occur twice through links. Records are ordered by class and then by file name.

    With `user_from` every file has a user, and the keyed hash is of the user. "folder": the name of the user's folder
    in the class folder. "class": the class. "dicom": the patient identifier (`load_files`). Otherwise a regular
    expression searched in the file's name, whose first group is the user, or the whole match if it has no group.
    """
    declared = order.declared
    users = _Users(declared.people.user_from, order.names)
    root = existing_folder(path)
    folders = subfolders(root)
    where = f"folder {str(root)!r}"
    if not folders:
        raise SfumatoError(f"{where} has no class folders", users.layout)
    _refuse_loose_images(root)
    # "train" may be a class of vehicles. It is a part only if it contains class folders itself.
    holders = [folder for folder in folders if users.in_classes(folder)]
    parts, notes = parts_of(holders), ()
    if parts:
        notes = notes_on_parts(parts, where)
        read = {"train": parts["train"], "test": parts[test_part(parts)]}
        folders = [folder for folder in folders if folder in read.values() or folder not in parts.values()]
        parts = read
    else:
        parts = {folder.name: folder for folder in holders if folder.name in PARTS}
    if parts:
        found = _parts(root, folders, parts, declared, users)
    elif {folder.name for folder in folders} == {*PARTS}:
        raise SfumatoError(f"train and test of {where} have no class folders", users.layout)
    else:
        found = users.listing({None: folders})
    return load_files(found, order, where=where, notes=(*notes, *users.notes))


class _Users:
    """Finds the user of each file in a class folder.

    Args:
        user_from: see `load`.
        spellings: normalises the names of classes and users.
    """

    def __init__(self, user_from: str | None, spellings: Spellings):
        self._spellings = spellings
        self._strays: list[Path] = []
        self._inner: list[Path] = []
        self.by_folder = user_from == BY_FOLDER
        self.layout = f"{_OF_USERS}, or {_OTHERWISE}" if self.by_folder else _LAYOUT
        self.pattern = None
        if user_from not in (None, BY_CLASS, BY_FOLDER, BY_PATIENT):
            try:
                self.pattern = re.compile(to_nfc(user_from))
            except re.error as error:
                raise SfumatoError(
                    f"`user_from={user_from}` is not a regular expression ({error})",
                    r"give one such as 'patient-(\d+)_', or folder if users have their own folders, or class if "
                    "each class is one user",
                ) from None

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on folders within class folders, and on files that are not images."""
        found: list[str] = []
        if self._inner:
            found.append(
                f"folders within class folders are read with their class ({_listed(self._inner)}); if they are "
                "users' folders, give `user_from=folder`"
            )
        if self._strays:
            found.append(f"files without an image's extension are ignored: {_listed(self._strays)}")
        return tuple(found)

    def in_classes(self, folder: Path) -> bool:
        """Whether a folder contains class folders, instead of being one."""
        inner = subfolders(folder)
        return any(subfolders(one) for one in inner) if self.by_folder else bool(inner)

    def listing(self, parts: Mapping[str | None, Sequence[Path]]) -> Listing:
        """The images in the class folders of each part; the key None means both parts."""
        found, files, several = ListingBuilder(self._spellings), TextBuffer(), Identities()
        for part, folders in parts.items():
            for folder in folders:
                refuse_unwritable(folder.name, "class name")
                for file, known, user in self._files(folder):
                    refuse_unwritable(str(file), "image", longest=None)
                    found.add(folder.name, part=part, user=user)
                    files.append(str(file))
                    several.add(file, known)
        for first, later in several.repeated():
            raise SfumatoError(
                f"images {files[first]!r} and {files[later]!r} are the same file",
                "keep one of them: the guarantee for one record covers one file name",
            )
        return found.listing(Files(files))

    def _files(self, folder: Path) -> Iterator[tuple[Path, os.stat_result, str | None]]:
        """The images of a class folder, with their `os.stat` and users."""
        if not self.by_folder:
            for file, known in _files(folder, self._strays, inner=self._inner):
                yield file, known, self._named(file)
            return
        for item in listing(folder):
            if not is_folder(item):
                if not is_image_file(item):
                    self._strays.append(item)
                    continue
                raise SfumatoError(
                    f"{str(item)!r} is not in a user's folder",
                    f"`user_from=folder` reads PATH/CLASS/USER/IMAGE; move it to one, or {_OTHERWISE}",
                )
            for file, known in _files(item, self._strays, "user's folder"):
                yield file, known, item.name

    def _named(self, file: Path) -> str | None:
        if (pattern := self.pattern) is None:
            return None
        name = to_nfc(file.name)
        match = pattern.search(name)
        user = match and match[1 if pattern.groups else 0]
        if not user:
            raise SfumatoError(
                f"the name of {str(file)!r} does not name its user by `user_from={pattern.pattern}`",
                "correct the pattern, rename the file, or remove it",
            )
        return user if name == file.name else to_nfd(user)


def _listed(places: list[Path]) -> str:
    """The first of several paths, and the number of others.

    >>> _listed([Path("data/cat/ann"), Path("data/dog/bob")])
    'cat/ann and 1 other'
    """
    first, more = places[0], len(places) - 1
    others = f" and {more} other{'s' if more > 1 else ''}" if more else ""
    name = f"{first.parent.name}/{first.name}"
    return f"{name if name.isprintable() else repr(name)}{others}"


def _parts(root: Path, folders: list[Path], parts: dict[str, Path], declared: Declared, users: _Users) -> Listing:
    for folder in folders:
        if folder not in parts.values():
            if part_by_name(folder.name) and not subfolders(folder):
                raise SfumatoError(
                    f"{folder.name} of folder {str(root)!r} has no class folders",
                    "put its images into class folders, or move it elsewhere",
                )
            raise SfumatoError(
                f"folder {str(root)!r} holds {folder.name!r} beside {' and '.join(sorted(parts, reverse=True))}",
                "keep the two folders train and test, each with class folders, and move the others elsewhere",
            )
    for name in PARTS:
        if name not in parts:
            raise SfumatoError(
                f"folder {str(root)!r} has no {name!r} beside {next(iter(parts))!r}",
                f"add {name} with the same class folders, or give only the class folders, which are then split",
            )
    names = {name: {to_nfc(folder.name) for folder in subfolders(part)} for name, part in parts.items()}
    only = sorted(names["train"] ^ names["test"])
    if only and declared.labels.classes is None and not declared.purpose.open_set:
        holder, other = ("train", "test") if only[0] in names["train"] else ("test", "train")
        raise SfumatoError(
            f"class {only[0]!r} of folder {str(root)!r} is in {holder} and not in {other}",
            f"add it to {other}, or declare the classes",
        )
    for part in parts.values():
        _refuse_loose_images(part)
    return users.listing({name: subfolders(parts[name]) for name in PARTS})


def _files(
    folder: Path, strays: list[Path], kind: str = "class folder", inner: list[Path] | None = None
) -> Iterator[tuple[Path, os.stat_result]]:
    """The images of a folder, with their `os.stat`.

    Args:
        strays: collects files without an image's name.
        kind: name of the folder in errors.
        inner: collects inner folders, which are then read at any depth, except links; None to refuse them.
    """
    empty = True
    for item in listing(folder):
        known = status(item)
        if stat.S_ISDIR(known.st_mode):
            if inner is not None and not item.is_symlink():
                inner.append(item)
                yield from _files(item, strays, kind, inner)
                empty = False
                continue
            if inner is not None:
                raise SfumatoError(
                    f"{kind} {str(folder)!r} holds the link {item.name!r} to a folder",
                    "put the folder itself there: links may form cycles",
                )
            whose = ", or give `user_from=folder` if it is a user's" if kind == "class folder" else ""
            raise SfumatoError(
                f"{kind} {str(folder)!r} holds the folder {item.name!r}", f"put images directly in {kind}s{whose}"
            )
        if not is_image_file(item):
            strays.append(item)
            continue
        empty = False
        yield item, known
    if empty:
        raise SfumatoError(f"{kind} {str(folder)!r} holds no image", "add images, or remove the folder")


def _refuse_loose_images(folder: Path) -> None:
    for item in listing(folder):
        if not is_folder(item) and is_image_file(item):
            raise SfumatoError(
                f"image {str(item)!r} lies outside every class folder", "move it to the folder of its class"
            )
