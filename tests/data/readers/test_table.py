"""Tables of image files."""

import numpy as np
import pytest
from PIL import Image

from sfumato import SfumatoError
from sfumato.data import open_source


@pytest.fixture
def files(class_folder):
    folder = class_folder(pictures=40)
    return folder, [f"pictures/{number:02}.png" for number in range(40)]


def opened(folder, lines, key, encoding="utf-8", **options):
    (folder / "t.csv").write_text("\n".join(lines) + "\n", encoding=encoding)
    return open_source(f"csv:{folder}/t.csv", owner_key=key, **options)


def test_relative_and_absolute_paths_in_the_given_parts(files, key):
    folder, names = files
    lines = ["split,extra,label,path"]
    for number, name in enumerate(names):
        path = folder / name if number % 3 else name
        lines.append(f"{'test' if number % 4 == 0 else 'train'},x,{'cat' if number % 5 else 'dog'},{path}")
    source = opened(folder, lines, key, encoding="utf-8-sig")
    chosen = [number for number in range(40) if number % 4]
    assert source.train.labels.tolist() == [0 if number % 5 else 1 for number in chosen]
    expected = np.stack([np.asarray(Image.open(folder / names[number])) for number in chosen])
    assert np.array_equal(source.train.images[..., 0], expected)
    assert source.train.users is None


def test_commas_and_quotes_in_names(files, key):
    folder, names = files
    lines = [
        "path,label",
        *(f'"{name}","cat, ""old"""' for name in names[::2]),
        *(f"{name},dog" for name in names[1::2]),
    ]
    assert opened(folder, lines, key).classes == ('cat, "old"', "dog")


@pytest.mark.parametrize("mark", ["|", ";", " + "])
def test_the_same_labels_in_another_order_are_no_class_of_their_own(files, key, mark):
    folder, names = files
    findings = [f"Effusion{mark}Mass", "Effusion", f"Mass{mark}Effusion", "No finding"]
    lines = ["path,label", *(f"{name},{findings[place % 4]}" for place, name in enumerate(names))]
    with pytest.raises(SfumatoError) as refused:
        opened(folder, lines, key)
    assert str(refused.value).replace("`", "") == (
        f"classes 'Effusion{mark}Mass' and 'Mass{mark}Effusion' of 'csv:{folder}/t.csv' are the same labels in another "
        "order; if a record may have several labels, give a column of 0 and 1 for each (label_columns); otherwise "
        "write them in one order, or declare the classes"
    )
    assert len(opened(folder, lines, key, classes=sorted(findings)).classes) == 4


def test_a_true_label_may_be_written_as_a_floating_point_number(files, key):
    folder, names = files
    lines = ["path,a,b", *(f"{name},{float(place % 2)},{int(place % 3 == 0)}" for place, name in enumerate(names))]
    found = opened(folder, lines, key, label_columns=("a", "b"))
    parts = (found.train, found.test)
    labels = dict(pair for part in parts for pair in zip(part.files.tolist(), part.labels.tolist(), strict=True))
    assert [labels[f"{folder}/{name}"] for name in names] == [[n % 2, int(n % 3 == 0)] for n in range(40)]
    with pytest.raises(SfumatoError, match="holds something other than 0 and 1"):
        opened(folder, [*lines[:-1], f"{names[-1]},-1.0,0"], key, label_columns=("a", "b"))
