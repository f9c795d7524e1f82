"""Writes EyePACS (Kaggle's Diabetic Retinopathy Detection) as the table that recipe:board/eyepacs reads.

python examples/eyepacs.py FOLDER

FOLDER has trainLabels.csv, retinopathy_solution.csv and the unpacked images, train/NAME.jpeg and test/NAME.jpeg. The
result is FOLDER/eyepacs.csv. Nothing is downloaded, and no image is copied.

As on the public board of private image classification (arXiv 2601.17189, in its code mshubhankar/DP-Benchmarks), the
classes are the five grades, trainLabels.csv is to be trained on, and all of retinopathy_solution.csv to be tested on. A
patient, who has a left and a right eye, is one user.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from pathlib import Path


def lines_of(folder: Path, name: str, split: str) -> Iterator[list[str]]:
    """A line for each image: path, label, user and split."""
    with (folder / name).open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            patient, _, _ = row["image"].partition("_")
            yield [f"{split}/{row['image']}.jpeg", row["level"], patient, split]


def main(folder: Path) -> None:
    with (folder / "eyepacs.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["path", "label", "user", "split"])
        for name, split in (("trainLabels.csv", "train"), ("retinopathy_solution.csv", "test")):
            table.writerows(lines_of(folder, name, split))
    print(folder / "eyepacs.csv")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]))
