"""Tables of image files."""

import numpy as np
import pytest
from PIL import Image

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
