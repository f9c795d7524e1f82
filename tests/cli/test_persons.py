"""A promise for persons from the command line: trained, resumed, ended, checked, and beside one for images."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from sfumato.cli import main
from sfumato.training import loop

# As in `quick`, for users: 30 of them.
USERS = "--model linear --steps 6 --noise-multiplier 4 --learning-rate 0.5 --threads 1 --device cpu --unit user"
AS_WHOLES = f"{USERS} --batch-size 8"


@pytest.fixture
def people(workplace) -> str:
    """A private table of two classes of 8 x 8 images, up to six of each of 40 people."""
    generator = np.random.default_rng(0)
    of = np.repeat(np.arange(40), 1 + np.arange(40) % 6)
    labels = np.arange(len(of)) % 2
    images = (generator.integers(0, 60, (len(of), 8, 8)) + 150 * labels[:, None, None]).astype(np.uint8)
    tested = of >= 30
    np.savez(
        "people.npz",
        **{f"{name}_train": values[~tested] for name, values in (("x", images), ("y", labels))},
        **{f"{name}_test": values[tested] for name, values in (("x", images), ("y", labels))},
        users_train=np.array([f"person {number}" for number in of[~tested]]),
        users_test=np.array([f"person {number}" for number in of[tested]]),
    )
    return "npz:people.npz"


@pytest.fixture
def say(capsys):
    """Run a command that succeeds; gives all that it prints."""

    def say(command: str) -> str:
        capsys.readouterr()
        assert main(shlex.split(command)) == 0
        printed = capsys.readouterr()
        return printed.out + printed.err

    return say


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (f"{AS_WHOLES} --per-user 4", "each single person, with up to 4 images, under add-or-remove adjacency"),
        (f"{AS_WHOLES} --per-step 2", "each single person, with all of their images, under"),
    ],
)
def test_a_promise_for_persons_from_end_to_end(call, people, options, sentence):
    told = call(f"train {people} {options} --output run")
    assert sentence in told
    assert "follows from" in call("verify run")
    page = Path("run/report.html").read_text()
    assert "For every single person" in page
    assert ">per user</th>" in page
    assert "A person with several images" not in page
    assert json.loads(call(f"evaluate run {people} --json"))["images"] == 31


def test_a_run_for_persons_goes_on_with_the_same_bytes(call, say, people, monkeypatch):
    for name, options in (("users", AS_WHOLES), ("shown", f"{AS_WHOLES} --per-step 1")):
        seeded = f"{options} --seed 4"
        call(f"train {people} {seeded} --output whole-{name}")
        with monkeypatch.context() as patch:
            patch.setattr(loop, "CHECKPOINT_SECONDS", 1e-6)
            patch.setattr(loop, "CHECKPOINT_SHARE", 1e9)
            descend, taken = loop.descend, []

            def cut(*given, descend=descend, taken=taken):
                taken.append(descend(*given))
                if len(taken) == 4:
                    raise KeyboardInterrupt

            patch.setattr(loop, "descend", cut)
            call(f"train {people} {seeded} --output cut-{name}", status=130)
        assert "resuming at step 3 of 6" in say(f"train cut-{name}")
        whole, other = (Path(f"{run}-{name}/model.safetensors").read_bytes() for run in ("whole", "cut"))
        assert whole == other


def test_a_run_for_persons_is_ended_early_and_taken_up_by_its_command_alone(call, people, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("sfumato.training.run.take_steps", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        call(f"train {people} {AS_WHOLES} --per-user 4 --output run", status=130)
    told = call(f"train {people} {AS_WHOLES} --per-user 3 --output run", status=1)
    assert "differs" in told
    assert "each single person, with up to 4 images" in call("finish run")
    call("verify run")


def test_runs_of_persons_and_of_images_stand_side_by_side(say, people, quick):
    say(f"train {people} {quick} --output images")
    told = say(f"train {people} {AS_WHOLES} --output persons")
    assert (
        "note: 1 earlier run of yours used these data; 1 run with a guarantee for each single example comes to" in told
    )
    assert "sfumato cannot add to the total" in told
    told = say(f"train {people} {AS_WHOLES} --output again")
    assert (
        "2 earlier runs of yours used these data, 1 of them with a guarantee for each single user; together with"
        in told
    )
    assert "At least 2 runs of yours have used these data" in told
    assert "for a person who is in all of them" in told
    assert "On the same data 1 run with a guarantee for each single example comes to epsilon" in told


def test_a_promise_for_images_says_what_it_is_for_a_person_with_several(call, people, quick):
    told = call(f"train {people} {quick} --output run")
    assert "For the person with the most training images (6), epsilon is" in told
    own = Path("run/report.html").read_text()
    call("report run --public")
    public = Path("run/report-public.html").read_text()
    for page in (own, public):
        assert "A person with several images" in page
    assert "The person with the most images in the data has 6" in own
    assert "most images in the data" not in public
    table = public.split("A person with several images</h2>")[1].split("</table>")[0]
    figures = [float(found) for found in re.findall(r'<td class="n">([\d.]+)</td>', table)]
    assert figures == sorted(figures)
    assert len(figures) == 3


def test_an_uncovered_search_is_by_persons(call, people):
    options = AS_WHOLES.replace("--learning-rate 0.5", "--per-user 4")
    told = call(f"sweep {people} {options} --vary learning_rate=0.1,0.5 --search uncovered --validation 0.3 --output s")
    assert "Together, the plans are" in told
    first = json.loads(Path("s/1/statement.json").read_text())
    assert first["unit"] == "user"
    assert "each single person" in first["sentence"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--per-user 3", "--per-user 3 applies to users, but the unit is an example; give --unit user"),
        ("--per-step 1", "--per-step 1 applies to users, but the unit is an example; give --unit user"),
        (f"{AS_WHOLES} --per-step 0", "--per-step must be at least 1"),
    ],
)
def test_refusals(call, people, options, words):
    assert words in call(f"train {people} --dry-run {options}", status=1)


def test_persons_who_are_trained_on_are_not_scored_on(call, people, monkeypatch):
    """Features that were made with --public may know the same people as the images."""
    monkeypatch.setattr("sfumato.search.workers._public_test_part", lambda score_on, source, named: source.train)
    options = f"{AS_WHOLES.replace('--learning-rate 0.5', '')} --vary learning_rate=0.1,0.5 --search uncovered"
    Path("public").mkdir()
    told = call(f"sweep {people} {options} --score-on features:public --output s", status=1)
    assert "30 of the 30 training users also have test records" in told
    assert not Path("s").exists()
