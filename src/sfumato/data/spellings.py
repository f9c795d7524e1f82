"""Names of classes, users and groups in one Unicode form, whichever form the system that wrote them has.

Archives and folders made on macOS hold accented letters decomposed, a letter and its accent; Linux and Windows mostly
write them composed. Both look alike and mean one name, and as two names one person would count as two users.
"""

from __future__ import annotations

import unicodedata

SHOWN = 3
"""Names that a note gives."""
_PLURALS = {"class": "classes", "user": "users", "group": "groups"}


def composed(name: str) -> str:
    """A name in Unicode's composed form (NFC), in which every name is compared, counted and kept.

    >>> composed("Zoe\\u0308") == "Zo\\u00eb", composed("ann")
    (True, 'ann')
    """
    return name if name.isascii() else unicodedata.normalize("NFC", name)


def decomposed(name: str) -> str:
    """The same name in the form that macOS writes (NFD)."""
    return unicodedata.normalize("NFD", name)


class Spellings:
    """Names as they are read, each once, and which of them are one name in several forms.

    **Guarantee.** What a name becomes is a function of that name alone, so that a record's class, user and group are
    functions of the record (unit: one record; adjacency: any). `notes` look at all names, for the
    owner alone.

    >>> names = Spellings()
    >>> names.of("user", "Zoe\\u0308") == names.of("user", "Zo\\u00eb"), len(names.notes)
    (True, 1)
    """

    def __init__(self) -> None:
        self._known: dict[str, dict[str, str]] = {what: {} for what in _PLURALS}

    def of(self, what: str, name: str) -> str:
        """The name in its composed form.

        Args:
            what: "class", "user" or "group".
            name: as it was read.
        """
        known = self._known[what]
        found = known.get(name)
        if found is None:
            found = known[name] = composed(name)
        return found

    @property
    def notes(self) -> tuple[str, ...]:
        """What to say of names that were read in several forms."""
        found: list[str] = []
        for what, known in self._known.items():
            names, several = set[str](), set[str]()
            for name in known.values():
                (several if name in names else names).add(name)
            if several:
                first, more = sorted(several)[:SHOWN], len(several) - SHOWN
                listed = ", ".join(map(repr, first)) + (f" and {more} more" if more > 0 else "")
                found.append(f"{_PLURALS[what]} written in more than one Unicode form are taken for one each: {listed}")
        return tuple(found)
