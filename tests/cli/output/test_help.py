"""What `sfumato VERB --help` shows: common options, a topic's, or every one once, in groups, the budget first."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from sfumato.cli import main
from sfumato.cli.options.pages import COMMON, GROUPS
from sfumato.cli.output import help as pages
from sfumato.cli.registry import VERBS, load
from sfumato.cli.verbs.train import Train

GROUPED = [name for topics in GROUPS.values() for names in topics.values() for name in names]
MOST = 45
"""Lines of help that fit on a screen."""
NEEDED = ["--epsilon", "--delta", "--examples", "--unit", "--model", "--pretrained", "--output", "--dry-run", "--json"]


def spelt(page: pages.Page) -> dict[str, pages.OptionHelp]:
    """The options of a page by their names."""
    return {one.name: one for group in page.options.values() for one in group}


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_is_shown_once_and_says_what_it_is_for(verb, capsys):
    assert main([verb, "--help-all"]) == 0
    printed = capsys.readouterr().out
    page = pages.full_page(load(verb))
    options = [one for group in page.options.values() for one in group]
    assert sorted(one.name for one in (*page.positional, *options)) == sorted(
        [*(field.name for field in fields(load(verb))), "help"]
    )
    assert all(one.text for one in (*page.positional, *options))
    for one in options:
        assert len(re.findall(rf"^  {re.escape(one.usage)}(?:  |$)", printed, re.MULTILINE)) == 1


@pytest.mark.parametrize("verb", VERBS)
def test_help_shows_the_common_options_of_a_verb_with_many_on_one_screen(verb, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    full = pages.full_page(load(verb))
    assert main([verb, "--help-all"]) == 0
    every = capsys.readouterr().out
    assert (verb in COMMON) == (len(every.splitlines()) > MOST)
    assert main([verb, "--help"]) == 0
    printed = capsys.readouterr().out
    if verb not in COMMON:
        assert printed == every
        return
    assert len(printed.splitlines()) <= MOST + 10
    assert set(COMMON[verb]) <= set(spelt(full))
    shown = re.findall(r"^  --([a-z-]+)(?: .*)?$", printed, re.MULTILINE)
    assert sorted(shown) == sorted(name.replace("_", "-") for name in COMMON[verb])
    *_, further = printed.split("\n\n")
    assert further.startswith(f"sfumato {verb} --help TOPIC shows more: ")
    named = " ".join(further.split()).partition(" shows more: ")[2].split(", ")
    hidden = set(spelt(full)) - {*COMMON[verb], "help"}
    topics = [topic for topics in GROUPS.values() for topic, names in topics.items() if hidden & set(names)]
    assert named == [*topics, *(["run"] if hidden - set(GROUPED) else []), "all"]
    for topic in named:
        assert main([verb, "--help", *topic.split()]) == 0
        about = capsys.readouterr().out
        assert about == every if topic == "all" else set(re.findall(r"^  --([a-z-]+)", about, re.MULTILINE))


@pytest.mark.parametrize(
    ("topic", "shown", "absent"),
    [
        ("noise", {"--noise-multiplier", "--noise", "--max-norm"}, {"--report-epsilon", "--views"}),
        ("model", {"--model", "--normalisation"}, {"--epsilon"}),
        ("run", {"--output", "--device", "--help"}, {"--epsilon", "--model"}),
        ("--views", {"--views"}, {"--shift"}),
    ],
)
def test_a_topic_s_options_are_shown_alone(topic: str, shown: set[str], absent: set[str], capsys):
    assert main(["train", "digits", "--help", topic]) == 0
    listed = set(re.findall(r"^  (?:-h, )?(--[a-z-]+)", capsys.readouterr().out, re.MULTILINE))
    assert shown <= listed
    assert not absent & listed


def test_a_topic_of_no_option_is_refused_with_those_that_there_are(capsys):
    assert main(["verify", "--help", "noise"]) == 2
    told = "error: sfumato verify has no options about 'noise'; give --help and one of run, all, or an option's name\n"
    assert capsys.readouterr().err == told


def test_the_short_page_of_train_is_a_snapshot(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["train", "-h"]) == 0
    assert capsys.readouterr().out == PAGE
    assert set(NEEDED) <= set(re.findall(r"--[a-z-]+", PAGE))


def test_values_and_defaults_are_spelt_as_they_are_given():
    train = spelt(pages.full_page(Train))
    assert train["epsilon"].usage == "--epsilon EPSILON[,EPSILON...]"
    assert train["epsilon"].text.endswith("one model for each. (default: 3)")
    assert train["dry_run"].usage == "--dry-run"
    assert "default" not in train["dry_run"].text
    assert train["output"].default == "(default: runs/ and the source's name)"
    assert "(required)" in spelt(pages.full_page(load("features")))["backbone"].text
    assert spelt(pages.full_page(load("predict")))["top"].text.endswith("(default: 3)")


@pytest.mark.parametrize(("columns", "every"), [(40, True), (200, False)])
def test_no_line_is_wider_than_the_terminal_or_than_can_be_read(monkeypatch, columns, every):
    monkeypatch.setenv("COLUMNS", str(columns))
    longest = max(map(len, pages.help_text(Train, every=every).splitlines()))
    assert longest <= max(pages.NARROWEST, min(columns - 2, pages.WIDEST)) + 24, "long spellings are not cut"


PAGE = """\
usage: sfumato train [OPTIONS] SOURCE|RECIPE|RUN

Train an image classifier privately, and state its guarantee.

SOURCE is digits, folder:PATH, npz:PATH, csv:PATH, parquet:PATH, hf:PATH,
webdataset:SHARDS, torchvision:NAME, or features:PATH for a cache made by
sfumato features; or a recipe (recipe:NAME, or a .toml file), which any option
overrides except the one that selects its row; or an unfinished run directory
to resume. Every option that is left out follows a written rule, from public
facts alone; --verbose prints the choices.

  SOURCE|RECIPE|RUN     A source, a recipe, or a run to resume.

budget:
  --epsilon EPSILON[,EPSILON...]
                        Privacy budget. (default: 3)
  --delta DELTA         Probability with which the epsilon bound may fail.
                        (default: a power of ten, at most 1e-5 and 1/(10 N))
  --unit example|user   What one promise covers: each single record (example),
                        or each person with all of their records (user).
                        (default: example)

data:
  --examples N          N, the number of training examples, declared.
                        (default: counted in the data)
  --user-from class|folder|dicom|REGEX
                        How to find the person behind each image. (default:
                        the user column, if there is one)
  --public              The data are public, so figures measured on them are
                        no secret.

model:
  --model NAME          dictionary, scattering, lenet5, lenet, cnn, linear,
                        mobilenet-v2, resnet-50, wrn-DEPTH-WIDTH,
                        nf-resnet-DEPTH, timm:NAME, or package:function for
                        one of your own. (default: by rule)
  --pretrained PATH     Initial weights from public data: a run directory,
                        which also sets model and image size, a safetensors
                        file, the npz archive of a published Wide-ResNet, or
                        the word timm.

run:
  --output PATH         Run directory. (default: runs/ and the source's name)
  --dry-run             Check everything, print plan, model, time and memory,
                        and spend nothing.
  --json                End with one JSON object on standard output.

sfumato train --help TOPIC shows more: noise and clipping, published figures,
audit, users, participation, time and drift, declared data, texts, heads,
normalisation, optimizer, views, averages, scores, run, all
"""
