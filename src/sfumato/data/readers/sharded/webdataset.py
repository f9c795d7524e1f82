"""webdataset:SHARDS - images in tar files in the format of WebDataset: `cat/0001.jpg` with `cat/0001.cls`.

The package `webdataset` streams shards from start to end and shuffles in a buffer. A private step needs a random sample
of all records, each drawn independently. So Python's `tarfile` lists the members once. After that each image is one
read, by shard, offset and length.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sfumato._checks import SfumatoError, parse_json
from sfumato.data.classes import to_nfc
from sfumato.data.clock import WRITTEN, TimeStamp, time_stamp
from sfumato.data.declared import Order
from sfumato.data.identity.record_users import BY_CLASS, NOBODY, SEPARATOR
from sfumato.data.parts import Parts
from sfumato.data.readers.csv_lines import refuse_other_time
from sfumato.data.readers.dicom import BY_PATIENT
from sfumato.data.readers.files import load_files
from sfumato.data.readers.listing import ListingBuilder
from sfumato.data.readers.sharded.members import Members, Sample, opened, parts_of, samples, shards_of

UNDERSTOOD = ("label_columns", "skip_unreadable", f"user_from={BY_PATIENT}", f"user_from={BY_CLASS}")
SUFFIX = ".tar"
_FACTS = ("user", "group", "time")


def find(argument: str) -> list[Path]:
    """The shards of this argument."""
    return shards_of(argument, "webdataset", SUFFIX)


def load(argument: str, order: Order) -> Parts:
    """Reads a tar file, all tar files in a folder, or those that match a pattern, in order of names and members.

    Consecutive members with the same path up to the first dot of the name form one record: an image, and its class in
    `.cls`, in `.json` as `label`, or in `.txt`. The `.json` may have `user`, `group` and `time` like a table, and 0 or
    1 for each of `label_columns`. Shards or folders named train and test (or validation, `part_in_name`) are the parts;
    otherwise a keyed hash decides, of the user if known, else of the image's bytes. Other members are ignored.
    """
    where = f"webdataset:{argument}"
    shards, parts, notes = parts_of(find(argument), where)
    stored, found, strays = Members(shards), ListingBuilder(order.names), []
    for number, (shard, part) in enumerate(zip(shards, parts, strict=True)):
        with opened(shard) as archive:
            for sample in samples(archive, shard):
                if sample.image is None and order.declared.loading.skip_unreadable:
                    strays.append(sample.name)
                    continue
                found.add(part=part, **_facts(sample, order, found))
                stored.add(number, sample)
    if not len(found):
        raise SfumatoError(f"{where} holds no image", "add some")
    listing = found.listing(stored).numbered(order.declared.labels.classes)
    return load_files(listing, order, where=where, unreadable=strays, notes=notes)


def _facts(sample: Sample, order: Order, found: ListingBuilder) -> dict[str, Any]:
    """The facts of a record, as arguments of `Gathering.add`."""
    name, said = f"record {sample.name!r}", _object(sample)
    facts: dict[str, Any] = {fact: _text(said[fact], fact, name) for fact in _FACTS if said.get(fact) is not None}
    if "user" in facts and not facts["user"]:
        raise SfumatoError(f"{name} has an empty user", f"write its user; {NOBODY}")
    if "group" in facts and "user" not in facts:
        raise SfumatoError(f"{name} has a group but no user", "add its user, or rename the field")
    if "user" in facts and (rule := order.declared.people.user_from) is not None:
        raise SfumatoError(f"{name} has a user, but `user_from={rule}` is given", "leave one of them out")
    if len(found) and set(facts) != found.optional_facts:
        odd = min(set(facts) ^ found.optional_facts)
        says, others = ("no", "have one") if odd in found.optional_facts else ("a", "have none")
        raise SfumatoError(f"{name} has {says} {odd}, but those before it {others}", "write all alike")
    if "time" in facts:
        facts["time"] = _time(facts["time"], name)
        refuse_other_time(facts["time"], facts["time"] if found.first_time is None else found.first_time, name)
    several = order.declared.labels.label_columns
    return {"label": _label(sample, said) if several is None else _labels(said, several, name), **facts}


def _label(sample: Sample, fields: dict[str, Any]) -> str:
    own = _text(fields["label"], "label", f"record {sample.name!r}") if "label" in fields else None
    label = sample.text("cls") or own or sample.text("txt")
    if not label:
        raise SfumatoError(f"record {sample.name!r} has no class", "add a member .cls, or a label in .json")
    return label


def _labels(fields: dict[str, Any], several: tuple[str, ...], name: str) -> tuple[int, ...]:
    if not all(type(fields.get(label)) in (int, bool) and fields[label] in (0, 1) for label in several):
        raise SfumatoError(
            f"{name} has something other than 0 and 1 for some of `label_columns`",
            "write them into its .json: 1 for true and 0 for false",
        )
    return tuple(int(fields[label]) for label in several)


def _time(text: str, name: str) -> TimeStamp:
    try:
        return time_stamp(text)
    except ValueError:
        raise SfumatoError(
            f"{name} has a time that is neither a date by ISO 8601 nor a finite number", f"write one {WRITTEN}"
        ) from None


def _object(sample: Sample) -> dict[str, Any]:
    text = sample.text("json")
    if text is None:
        return {}
    try:
        said = parse_json(text)
    except ValueError:
        said = None
    if not isinstance(said, dict):
        raise SfumatoError(f"{sample.name}.json is not a JSON object", "correct it, or remove the record")
    return {to_nfc(key): value for key, value in said.items()}


def _text(value: Any, fact: str, name: str) -> str:
    if fact == "user" and isinstance(value, list):
        names = [_text(one, fact, name) for one in value]
        return SEPARATOR.join([SEPARATOR, *names]) if all(names) else ""
    if type(value) not in (str, int, float) or (type(value) is float and fact != "time"):
        raise SfumatoError(f"{name} has a {fact} that is neither text nor an integer", "write one of them")
    return str(value).strip()
