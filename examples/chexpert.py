"""Writes CheXpert as the table that recipe:board/chexpert reads.

python examples/chexpert.py FOLDER [TABLE]

FOLDER is the unpacked CheXpert-v1.0 or CheXpert-v1.0-small, with train.csv and valid.csv. TABLE is the table in
FOLDER to test on: valid.csv by default, or the published labels of the test set, whose images are in FOLDER/test. The
result is FOLDER/chexpert.csv. Nothing is downloaded, and no image is copied.

The five labels and the rule for uncertain ones (-1) are those of the public board of private image classification
(arXiv 2601.17189, in its code mshubhankar/DP-Benchmarks): uncertain edema and atelectasis count as present, the other
three as absent, and so does a label that is not mentioned. Frontal and lateral images are taken. A patient is one user.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterator
from pathlib import Path

UNCERTAIN = {"Cardiomegaly": 0, "Edema": 1, "Consolidation": 0, "Atelectasis": 1, "Pleural Effusion": 0}
"""For each label what an uncertain one counts as."""
IN_FOLDER = re.compile(r"(?:^|/)((?:train|valid|test)/(patient\d+)/.+)$")
"""The part of a path from the folder of its split on, and the patient."""


def lines_of(table: Path, split: str) -> Iterator[list[str]]:
    """A line for each image: path, user, split and the five labels."""
    with table.open(newline="", encoding="utf-8") as file:
        for number, row in enumerate(csv.DictReader(file), 2):
            if (found := IN_FOLDER.search(row["Path"])) is None:
                raise SystemExit(f"line {number} of {table} has the path {row['Path']!r}, which is none of CheXpert")
            yield [*found.groups(), split, *(label(row[name], uncertain) for name, uncertain in UNCERTAIN.items())]


def label(value: str, uncertain: int) -> str:
    """0 or 1 for 1.0, 0.0, -1.0 or nothing."""
    return str({1: 1, 0: 0, -1: uncertain}[int(float(value or 0))])


def main(folder: Path, test: str = "valid.csv") -> None:
    with (folder / "chexpert.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["path", "user", "split", *UNCERTAIN])
        for name, split in (("train.csv", "train"), (test, "test")):
            table.writerows(lines_of(folder / name, split))
    print(folder / "chexpert.csv")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]), *sys.argv[2:])
