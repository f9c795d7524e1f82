"""folder:PATH - image files in one folder for each class."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from sfumato._checks import SfumatoError
from sfumato.data.classes import notes_on_parts, part_by_name, refuse_unwritable, test_part, to_nfc, to_nfd
from sfumato.data.declared import Order
from sfumato.data.decoding import is_image_file
from sfumato.data.readers.dicom import BY_PATIENT
from sfumato.data.readers.files import load_files
from sfumato.data.readers.layout import (
    PARTS,
    existing_folder,
    is_folder,
    listing,
    parts_of,
    refuse_unclear_classes,
    status,
    subfolders,
)
from sfumato.data.readers.listing import Listing, ListingBuilder
from sfumato.data.record_users import BY_CLASS, BY_FOLDER, refuse_several
from sfumato.data.records import Files, Identities, TextBuffer
from sfumato.data.source import Parts

_LAYOUT = "make one folder for each class, such as PATH/cat and PATH/dog, or PATH/train/cat and PATH/test/cat"
_OF_USERS = "make a folder for each user in each class folder, such as PATH/cat/ann, or PATH/train/cat/ann"
_OTHERWISE = "give `user_from=class` if each class is one user, or leave it out"
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
    names = _Names(order)
    root = existing_folder(path)
    folders = subfolders(root)
    where = f"folder {str(root)!r}"
    if not folders and not names.deep:
        raise SfumatoError(f"{where} has no class folders", names.layout)
    # "train" may be a class of vehicles. It is a part only if it contains class folders itself.
    holders = [folder for folder in folders if names.in_classes(folder)]
    parts, notes = parts_of(holders), ()
    if parts:
        notes = notes_on_parts(parts, where)
        read = {"train": parts["train"], "test": parts[test_part(parts)]}
        folders = [folder for folder in folders if folder in read.values() or folder not in parts.values()]
        parts = read
    else:
        parts = {folder.name: folder for folder in holders if folder.name in PARTS}
    if not names.deep:
        _refuse_loose_images(root)
        if declared.people.user_from != BY_CLASS and declared.loading.class_from is None:
            top = [inner for part in parts.values() for inner in subfolders(part)] or folders
            if not {to_nfc(inner.name) for inner in top} <= {*(declared.labels.classes or ())}:
                refuse_unclear_classes(top, where, by_folder=names.by_folder)
    if parts:
        _check_parts(root, folders, parts, names)
        listing = names.listing({name: parts[name] for name in PARTS})
    elif {folder.name for folder in folders} == {*PARTS}:
        raise SfumatoError(f"train and test of {where} have no class folders", names.layout)
    else:
        listing = names.listing({None: root})
    return load_files(listing, order, where=where, notes=(*notes, *names.notes))


class _Names:
    """Finds the class and the user of each file.

    Attributes:
        deep: whether `class_from` names the class by another level than the first, or by the file's name.
        by_folder: whether folders name the users.
        closed: whether both parts must have the same classes.
        layout: the remedy for missing folders.
    """

    def __init__(self, order: Order):
        declared = order.declared
        user_from, class_from = declared.people.user_from, declared.loading.class_from
        self.closed = declared.labels.classes is None and not declared.purpose.open_set
        self._strays: list[Path] = []
        self._inner: list[Path] = []
        level = _LEVEL.fullmatch(class_from or "folder:1")
        self._level = 0 if level is None else int(level[1])
        self.deep = self._level != 1
        self.by_folder = user_from == BY_FOLDER
        self.layout = f"{_OF_USERS}, or {_OTHERWISE}" if self.by_folder else _LAYOUT
        self._user = self._class = None
        if user_from not in (None, BY_CLASS, BY_FOLDER, BY_PATIENT):
            others = "folder if users have their own folders, or class if each class is one user"
            self._user = _pattern("user_from", user_from, rf"'patient-(\d+)_', or {others}")
        if level is None:
            self._class = _pattern("class_from", str(class_from), "'class([01])', or a level such as folder:2")

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on folders within class folders, and on files that are not images."""
        notes: list[str] = []
        if self._inner and not self.deep:
            notes.append(
                f"folders within class folders are read with their class ({_listed(self._inner)}); if they are "
                "users' folders, give `user_from=folder`"
            )
        if self._strays:
            notes.append(f"files without an image's extension are ignored: {_listed(self._strays)}")
        return tuple(notes)

    def in_classes(self, folder: Path) -> bool:
        """Whether a folder may be a part: it contains class folders, instead of being one."""
        inner = subfolders(folder)
        return self.deep or (any(subfolders(item) for item in inner) if self.by_folder else bool(inner))

    def listing(self, parts: Mapping[str | None, Path]) -> Listing:
        """The images in the folder of each part; the key None means both parts."""
        builder, files, several = ListingBuilder(), TextBuffer(), Identities()
        for part, root in parts.items():
            for file, file_stat, label, user in self._deep_files(root) if self.deep else self._files(root):
                refuse_unwritable(label, "class name")
                refuse_unwritable(str(file), "image", longest=None)
                if user is not None:
                    refuse_several(user, f"image {str(file)!r}")
                builder.add(label, part=part, user=user)
                files.append(str(file))
                several.add(file, file_stat)
        for first, later in several.repeated():
            raise SfumatoError(
                f"images {files[first]!r} and {files[later]!r} are the same file",
                "keep one of them: the guarantee for one record covers one file name",
            )
        return builder.listing(Files(files))

    def _deep_files(self, root: Path) -> Iterator[tuple[Path, os.stat_result, str, str | None]]:
        """The images at any depth, with their `os.stat`, classes and users."""
        for file, file_stat in _files(root, self._strays, "folder", inner=self._inner):
            levels = file.relative_to(root).parts[:-1]
            if len(levels) < max(self._level, self.by_folder):
                raise SfumatoError(
                    f"{str(file)!r} is in too few folders",
                    "move it to the folder of its class or user, or correct `class_from` and `user_from`",
                )
            label = levels[self._level - 1] if self._level else str(self._named(file, "class_from", self._class))
            yield file, file_stat, label, levels[0] if self.by_folder else self._named(file, "user_from", self._user)

    def _files(self, root: Path) -> Iterator[tuple[Path, os.stat_result, str, str | None]]:
        """The images in class folders, with their `os.stat`, classes and users."""
        for folder in subfolders(root):
            if not self.by_folder:
                for file, file_stat in _files(folder, self._strays, inner=self._inner):
                    yield file, file_stat, folder.name, self._named(file, "user_from", self._user)
                continue
            for item in listing(folder):
                if not is_folder(item):
                    if not is_image_file(item):
                        self._strays.append(item)
                        continue
                    raise SfumatoError(
                        f"{str(item)!r} is not in a user's folder",
                        f"`user_from=folder` reads PATH/CLASS/USER/IMAGE; move it to one, or {_OTHERWISE}",
                    )
                for file, file_stat in _files(item, self._strays, "user's folder"):
                    yield file, file_stat, folder.name, item.name

    def _named(self, file: Path, option: str, pattern: re.Pattern[str] | None) -> str | None:
        """The text that the pattern finds in the file's name; None without a pattern."""
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


def _listed(places: list[Path]) -> str:
    """The first of several paths, and the number of others.

    >>> _listed([Path("data/cat/ann"), Path("data/dog/bob")])
    'cat/ann and 1 other'
    """
    first, more = places[0], len(places) - 1
    others = f" and {more} other{'s' if more > 1 else ''}" if more else ""
    name = f"{first.parent.name}/{first.name}"
    return f"{name if name.isprintable() else repr(name)}{others}"


def _pattern(option: str, text: str, example: str) -> re.Pattern[str]:
    """The regular expression that an option gives."""
    try:
        return re.compile(to_nfc(text))
    except re.error as error:
        problem = f"`{option}={text}` is not a regular expression ({error})"
        raise SfumatoError(problem, f"give one such as {example}") from None


def _check_parts(root: Path, folders: list[Path], parts: dict[str, Path], names: _Names) -> None:
    """Refuses folders next to the parts, a missing part, and classes of one part alone unless they are declared."""
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
    if names.deep:
        return
    classes = {name: {to_nfc(folder.name) for folder in subfolders(part)} for name, part in parts.items()}
    only = sorted(classes["train"] ^ classes["test"])
    if only and names.closed:
        holder, other = ("train", "test") if only[0] in classes["train"] else ("test", "train")
        raise SfumatoError(
            f"class {only[0]!r} of folder {str(root)!r} is in {holder} and not in {other}",
            f"add it to {other}, or declare the classes",
        )
    for part in parts.values():
        _refuse_loose_images(part)


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
        file_stat = status(item)
        if stat.S_ISDIR(file_stat.st_mode):
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
        yield item, file_stat
    if empty:
        raise SfumatoError(f"{kind} {str(folder)!r} holds no image", "add images, or remove the folder")


def _refuse_loose_images(folder: Path) -> None:
    for item in listing(folder):
        if not is_folder(item) and is_image_file(item):
            raise SfumatoError(
                f"image {str(item)!r} lies outside every class folder", "move it to the folder of its class"
            )
