"""sfumato dedup: which set loses its images, and who is told of it."""

import json
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sfumato.cli import main
from sfumato.data import open_source

KEY = bytes(32)
QUICK = "--model linear --steps 2 --noise-multiplier 8 --batch-size 20 --threads 1 --device cpu"


def noise(count: int, seed: int) -> np.ndarray:
    coarse = np.random.default_rng(seed).integers(0, 256, (count, 8, 8, 3), dtype=np.uint8)
    return coarse.repeat(4, 1).repeat(4, 2)


@pytest.fixture
def sets(workplace) -> tuple[str, str]:
    """A public and a private archive; the private images 3, 7 and 41 are public, 7 as its mirror image."""
    public, private = noise(60, 0), noise(50, 1)
    private[3], private[7], private[41] = public[5], public[9][:, ::-1], public[50]
    for name, images in (("public", public), ("private", private)):
        train = 40
        labels = np.arange(len(images)) % 2
        np.savez(
            f"{name}.npz", x_train=images[:train], y_train=labels[:train], x_test=images[train:], y_test=labels[train:]
        )
    return "npz:public.npz", "npz:private.npz"


def test_private_images_are_left_out_of_the_private_set(call, sets):
    found = json.loads(call(f"dedup {sets[0]} {sets[1]} --output d --json"))
    assert (found["exact"], found["near"], found["written"]) == (2, 1, "npz:d/private.npz")
    pairs = json.loads(Path("d/pairs.json").read_text())
    rows = {"x_train": (3, 7), "x_test": (1,)}, {"x_train": (5, 9), "x_test": (10,)}
    private, public = ([{"array": name, "row": row} for name in side for row in side[name]] for side in rows)
    assert [(pair["private"], pair["public"]) for pair in pairs] == list(zip(private, public, strict=True))
    assert [pair["mirrored"] for pair in pairs] == [False, True, False]
    before, after = (open_source(spec, owner_key=KEY) for spec in (sets[1], found["written"]))
    kept = [place for place in range(40) if place not in (3, 7)]
    assert np.array_equal(after.train.images, before.train.images[kept])
    assert np.array_equal(after.train.labels, before.train.labels[kept])
    assert len(after.test) == 9
    assert not after.filtered
    page = Path("d/pairs.html").read_text()
    assert page.count("<li>") == 3
    assert "private, x_test[1]<" in page
    assert "public, x_test[10]<" in page
    assert {path.stat().st_mode & 0o077 for path in Path("d").iterdir()} == {0}
    assert "is not empty" in call(f"dedup {sets[0]} {sets[1]} --output d", status=1)


def test_rows_are_those_of_the_file_where_it_was_split(call, sets):
    """By hash, so that a record's place in its part says nothing."""
    for name in ("public", "private"):
        parts = np.load(f"{name}.npz")
        np.savez(
            f"{name}-whole.npz",
            **{one: np.concatenate([parts[f"{one}_{p}"] for p in ("train", "test")]) for one in "xy"},
        )
    call("dedup npz:public-whole.npz npz:private-whole.npz --output d")
    found = {
        (pair["private"]["array"], pair["private"]["row"], pair["public"]["array"], pair["public"]["row"])
        for pair in json.loads(Path("d/pairs.json").read_text())
    }
    assert found == {("x", 3, "x", 5), ("x", 7, "x", 9), ("x", 41, "x", 50)}


def test_what_is_alike_is_not_called_the_same(call, sets, capsys):
    arrays = dict(np.load("private.npz"))
    arrays["x_test"][1] //= 16
    arrays["x_test"][1] *= 16
    np.savez("near.npz", **arrays)
    cases = (
        (
            "npz:near.npz",
            "3 of 50 private images and 3 of 60 public ones are similar: 1 exact copy, 2 near copies.",
            True,
        ),
        (f"{sets[1]} --drop none", "similar: 2 exact copies, 1 near copy.", False),
        (f"{sets[1]} --limit 0.001", "similar: 2 exact copies, 1 near copy.", False),
    )
    for number, (options, words, hint) in enumerate(cases):
        assert main(shlex.split(f"dedup {sets[0]} {options} --output {number}")) == 0
        printed = capsys.readouterr()
        assert words in printed.out
        assert ("near copies may be different images that look alike" in printed.err) == hint


def test_weights_that_know_a_private_image_are_refused_until_it_is_left_out(call, sets):
    call(f"pretrain {sets[0]} --public --model linear --steps 2 --batch-size 10 --output pre --threads 1")
    fine = f"{QUICK.replace('--model linear', '')} --pretrained pre"
    line = call(f"train {sets[1]} {fine} --output no", status=1)
    assert "without privacy on 1 of these 50 private records, which are private here; leave these records out" in line
    assert not Path("no").exists()
    call(f"dedup {sets[0]} {sets[1]} --output d")
    call(f"train npz:d/private.npz {fine} --output run")
    assert "1 of these" not in Path("run/statement.json").read_text() + Path("run/report.html").read_text()


def test_a_filtered_public_set_is_named_in_every_statement_that_comes_of_it(call, sets):
    call("pretrain digits --model lenet-300-100 --size 32 --channels 3 --steps 1 --batch-size 4 --output wrn")
    found = json.loads(call(f"dedup {sets[0]} {sets[1]} --drop public --output d --json"))
    assert found["written"] == "npz:d/public.npz"
    assert open_source(found["written"], owner_key=KEY).filtered
    call(f"pretrain {found['written']} --public --model linear --steps 2 --batch-size 10 --output pre --threads 1")
    statement = json.loads(Path("pre/statement.json").read_text())
    assert statement["filtered"]
    assert "were filtered by looking at private data" in statement["not_covered"][-1]
    images, labels = noise(40, 5), np.arange(40) % 2
    np.savez("others.npz", x_train=images[:30], y_train=labels[:30], x_test=images[30:], y_test=labels[30:])
    call("pretrain npz:others.npz --public --pretrained pre --steps 2 --batch-size 10 --output again --threads 1")
    assert json.loads(Path("again/statement.json").read_text())["origins"] == ["filtered data", "public run"]
    for weights in ("pre", "again"):
        call(f"train {sets[1]} {QUICK.replace('--model linear', '')} --pretrained {weights} --output {weights}-run")
        private = json.loads(Path(f"{weights}-run/statement.json").read_text())
        assert private["circumstances"]["origins"] == ["filtered data", "public run"]
        assert "filtered by looking at private data" in private["not_covered"][0]
        call(f"verify {weights}-run")
    call(f"train {found['written']} {QUICK} --output direct")
    call(f"features {found['written']} --backbone wrn --output cache --size 32")
    call(f"train features:cache {QUICK.replace('linear', 'head')} --output on-features")
    for run in ("direct", "on-features"):
        private = json.loads(Path(f"{run}/statement.json").read_text())
        assert private["circumstances"]["filtered"]
        assert "The choice of the training data. They were filtered" in private["not_covered"][0]
        call(f"verify {run}")
    call(f"train {sets[1]} {QUICK.replace('--model linear', '')} --pretrained direct --output after")
    after = json.loads(Path("after/statement.json").read_text())
    assert after["circumstances"]["origins"] == ["filtered data", "private run"]
    call(f"pretrain {found['written']} --public --pretrained after --steps 2 --batch-size 10 --output mix --threads 1")
    mixed = json.loads(Path("mix/statement.json").read_text())
    assert mixed["origins"] == ["filtered data", "private run"]
    assert len(mixed["not_covered"]) == 4, "filtered data, before and now"
    chained = json.loads(call(f"dedup {found['written']} {sets[1]} --output chained --json"))
    assert open_source(chained["written"], owner_key=KEY).filtered, "a filter by a filtered set is marked as well"
    call(f"pretrain {sets[0]} --public --model linear --steps 2 --batch-size 10 --output plain --threads 1")
    assert not json.loads(Path("plain/statement.json").read_text())["filtered"]


def test_folders_become_tables_of_the_files_that_are_left(call, shown, spots_folder):
    found = json.loads(call(f"dedup {shown} folder:{spots_folder} --output d --json"))
    assert found["written"] == "csv:d/private.csv"
    assert found["private"] == 120
    twice = f"dedup folder:{spots_folder} folder:{spots_folder}"
    assert "hold the same images; name the public set, then the private" in call(twice, status=1)
    shutil.copytree(spots_folder, "shown")
    other = next(Path("shown").rglob("*.png"))
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (12, 12), np.uint8)).save(other)
    again = json.loads(call(f"dedup folder:shown folder:{spots_folder} --drop public --output e --json"))
    assert again["exact"] == 119
    pair = json.loads(Path("e/pairs.json").read_text())[0]
    assert Path(pair["public"]["file"]).name == Path(pair["private"]["file"]).name
    assert pair["private"]["file"].startswith(str(spots_folder))
    assert Path(pair["private"]["file"]).name in Path("e/pairs.html").read_text()
    assert open_source("csv:d/private.csv", owner_key=KEY).train.files is not None
    lines = Path("e/public.csv").read_text().splitlines()  # all copies of an image are left out
    assert (lines[0], len(lines)) == ("path,label,split,filtered_by_private_data", 2)
    assert str(other) in lines[1]
    table = Path("d/private.csv").read_text().splitlines()
    marked = [f"{table[0]},filtered_by_private_data", *(f"{line},yes" for line in table[1:])]
    Path("marked.csv").write_text("\n".join(marked))
    assert open_source("csv:marked.csv", owner_key=KEY).filtered


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--resolution 64", "--resolution 64 is for --backbone; leave it out"),
    ],
)
def test_refusals(call, sets, options, words):
    assert words in call(f"dedup {sets[0]} {sets[1]} {options} --output d", status=1)
    assert not Path("d").exists()


def test_a_set_that_would_be_empty_is_not_written(call, sets):
    arrays = np.load("private.npz")
    np.savez("all.npz", **{name: values[1:] if name.endswith("train") else values for name, values in arrays.items()})
    told = call(f"dedup {sets[1]} npz:all.npz")
    assert "No images are left, so no set was written." in told
    assert sorted(path.name for path in Path("dedup/all").iterdir()) == ["pairs.html", "pairs.json"]
    call(f"dedup npz:all.npz {sets[1]}")
    call(f"dedup {sets[0]} {sets[1]} --drop public")
    assert Path("dedup/private-public/public.npz").exists(), "beside what was written the other way round"


def test_a_networks_features_find_what_pixels_miss(call, sets):
    """An image in other light."""
    call("pretrain digits --model lenet-300-100 --channels 3 --size 12 --steps 2 --batch-size 64 --output wrn")
    private = dict(np.load("private.npz"))
    private["x_train"][11] = np.clip(np.load("public.npz")["x_train"][20] * 0.9 + 25, 0, 255).astype(np.uint8)
    np.savez("private.npz", **private)
    pixels = json.loads(call(f"dedup {sets[0]} {sets[1]} --output d --drop none --json"))
    assert (pixels["near"], pixels["by_features"]) == (1, 0)
    found = json.loads(call(f"dedup {sets[0]} {sets[1]} --backbone wrn --output e --json"))
    assert found["by_features"] == 1
    pairs = json.loads(Path("e/pairs.json").read_text())
    by_features = [(pair["private"]["row"], pair["public"]["row"]) for pair in pairs if pair["by_features"]]
    assert by_features == [(11, 20)]
    assert "similar features" in Path("e/pairs.html").read_text()
    assert len(np.load("e/private.npz")["x_train"]) == 40 - 3, "3, 7 and 11 are left out"


def test_a_network_that_knows_a_private_image_compares_none(call, sets):
    """Its features of one image would tell of another."""
    call(f"pretrain {sets[0]} --public --model lenet-300-100 --steps 1 --batch-size 4 --device cpu --output wrn")
    told = call(f"dedup {sets[0]} {sets[1]} --backbone wrn --output d", status=1)
    assert "without privacy on 1 of these 50 private records" in told
    assert not Path("d").exists()
