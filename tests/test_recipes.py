"""Every recipe can be read, plans to the epsilon that it states, and builds its model. No data are looked at."""

import functools
import itertools
import re
import shlex
import subprocess
import sys
import zipfile
from dataclasses import fields, replace
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import timm
import torch
from torch import nn

from sfumato import cli, models, optim
from sfumato._choices import choices_of
from sfumato.cli.options import recipe
from sfumato.cli.parser import page_of
from sfumato.cli.registry import load
from sfumato.data import kinds
from sfumato.experiment import EmbeddingExperiment, Settings
from sfumato.experiment.client_choices import NOISELESS, WITHOUT_PLAN
from sfumato.experiment.clients import PublicDecision
from sfumato.experiment.settings import PairOfRecords
from sfumato.models import create_embedding
from sfumato.privacy import PrivacyPlan, User

ROOT = Path(__file__).resolve().parents[1]
ABOUT = {"paper", "command", "accuracy", "hardware", "time"}
PLANNED = (
    *("examples", "users", "delta", "batch_size", "steps", "noise_multiplier", "epsilon", "accountant", "max_norm"),
)
CLASSES = {"CIFAR100": 100, "imagenet": 1000, "imagenet32": 1000, "places365": 365, "jft300m": 18_000, "jft4b": 30_000}
SHAPES = {"digits": (1, 8), "MNIST": (1, 28), "CIFAR10": (3, 32), "CIFAR100": (3, 32)}

Row = tuple[str, float | None]
"""A recipe's name, and the label of its row."""


@functools.cache
def table(name: str) -> dict[str, Any]:
    return recipe.table_of(f"{recipe.SCHEME}{name}")


@functools.cache
def labels(name: str) -> list[float | None]:
    by = recipe.row_option(f"{recipe.SCHEME}{name}")
    return [row[by.replace("_", "-")] for row in table(name)["row"]] if by else [None]


def verb_of(name: str) -> str:
    return table(name)[recipe.ABOUT]["command"].split()[1]


@functools.cache
def known(verb: str) -> set[str]:
    return {field.name for field in fields(load(verb))} - {"what", "json", "dry_run"}


def options_of(row: Row) -> dict[str, Any]:
    """What `sfumato train` would take from the recipe."""
    return dict(_options_of(*row))


@functools.cache
def _options_of(name: str, label: float | None) -> dict[str, Any]:
    what = f"{recipe.SCHEME}{name}"
    given = {recipe.row_option(what) or "": label}
    return recipe.read(what, given, known(verb_of(name)), verb=verb_of(name))


def about(row: Row) -> dict[str, Any]:
    """What it says of itself, that of its row over that of all rows."""
    name, label = row
    own = table(name).get("row", [{}])[labels(name).index(label)]
    return table(name)[recipe.ABOUT] | own.get(recipe.ABOUT, {})


def largest(epsilon: float | tuple[float, ...]) -> float:
    """Of the budgets that a recipe names, the one that its figures are those of."""
    return max(epsilon) if isinstance(epsilon, tuple) else epsilon


def plan(options: dict[str, Any]) -> PrivacyPlan:
    """Its plan; a row that names noise has its epsilon as a bound."""
    given = {name: options[name] for name in PLANNED if name in options}
    pair = PairOfRecords(**{one.name: options[one.name] for one in fields(PairOfRecords) if one.name in options})
    if (users := given.pop("users", None)) is not None:
        given |= {"examples": users, "unit": User(at_most=options["per_user"])}
    given |= pair.request(given["examples"], momentum=options.get("momentum", 0.9))._asdict()
    return PrivacyPlan.calibrate(**(given | {"epsilon": None} if "noise_multiplier" in given else given))


def with_noise(options: dict[str, Any], noise_multiplier: float) -> PrivacyPlan:
    return plan({**options, "noise_multiplier": noise_multiplier})


@functools.cache
def build(name: str, classes: int, channels: int, size: int) -> nn.Module:
    """Without memory: all but the numbers; a dictionary is made of its numbers."""
    with torch.device("cpu" if name.startswith("dictionary") else "meta"):
        return models.create(name, classes=classes, channels=channels, size=size)


def planned(row: Row) -> tuple[Any, ...]:
    """All that its figures follow from."""
    options = options_of(row)
    return *(options.get(name) for name in PLANNED), about(row).get("noise_multiplier")


def distinct(rows: list[Row]) -> list[Row]:
    """One row for each plan."""
    return list({planned(row): row for row in reversed(rows)}.values())[::-1]


def extremes(rows: list[Row]) -> list[Row]:
    """The first and the last row of each recipe, those with plans of their own."""
    grouped = [list(group) for _, group in itertools.groupby(rows, key=lambda row: row[0])]
    return distinct([row for group in grouped for row in (group[0], group[-1])])


NAMES = recipe.names()
recipe_table = recipe.table_of
recipe.table_of = functools.cache(recipe_table)  # each is read many times, until all rows are known
PRIVATE = [(name, label) for name in NAMES if verb_of(name) == "train" for label in labels(name)]
NOISY = [row for row in PRIVATE if "noise_multiplier" in options_of(row)]
CALIBRATED = [row for row in PRIVATE if "noise_multiplier" in about(row)]
EMBEDDINGS = [(name, label) for name in NAMES if verb_of(name) == "embed" for label in labels(name)]
OF_EMBEDDINGS = [row for row in EMBEDDINGS if options_of(row)["method"] not in WITHOUT_PLAN]
WITHOUT_A_PLAN = [row for row in EMBEDDINGS if row not in OF_EMBEDDINGS]
DEAREST = extremes(PRIVATE)
recipe.table_of = recipe_table
"""Those whose privacy loss distribution is computed; it takes ten times as long as Renyi DP."""


def each(rows: list[Row], slow: int = 1) -> pytest.MarkDecorator:
    """All rows, of which one in `slow` is looked at always, and the others by the slow tests."""
    marks = [() if number % slow == 0 else pytest.mark.slow for number in range(len(rows))]
    return pytest.mark.parametrize(
        "row",
        [
            pytest.param(row, marks=mark, id=" ".join(filter(None, map(str, row))))
            for row, mark in zip(rows, marks, strict=True)
        ],
    )


def test_there_are_recipes():
    assert (len(NAMES), len(NOISY), len(CALIBRATED)) == (
        93 + 25 + 12 + 25 + 7,
        50 + 13 + 10 + 30 + 2,
        35 + 29 + 43 + 4 + 12 + 26,
    )
    assert len(PRIVATE) == 3 + 50 + 35 + 42 + 43 + 14 + 30 + 14 + 26
    assert {verb_of(name) for name in NAMES} == {"train", "pretrain", "embed"}
    assert (len(OF_EMBEDDINGS), len(WITHOUT_A_PLAN)) == (4 + 2 + 4 * 4, 2 * 2 + 1 + (5 + 4 + 6 + 6 + 4 + 5) + 4 * 6 + 1)


def test_an_installed_package_brings_them(tmp_path: Path):
    folder = resources.files("sfumato") / "recipes"
    assert all((folder / f"{name}.toml").is_file() for name in NAMES)
    pytest.importorskip("hatchling")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert {f"sfumato/recipes/{name}.toml" for name in NAMES} <= set(zipfile.ZipFile(wheel).namelist())


@each(distinct(PRIVATE), slow=8)
def test_it_plans_to_the_epsilon_that_it_states(row: Row):
    options, stated = options_of(row), about(row)
    # What calibration would find for a target is looked at below, at the price of two evaluations, not of dozens.
    found = with_noise(options, stated["noise_multiplier"]) if row in CALIBRATED else plan(options)
    assert stated["epsilon"] <= largest(options["epsilon"])
    if "epsilon_rdp" in stated:
        assert stated["epsilon_rdp"] - 0.001 < found.epsilon(accountant="rdp") <= stated["epsilon_rdp"]
    if row in DEAREST:
        assert stated["epsilon"] - 0.001 < found.epsilon() <= stated["epsilon"]


def embedding_plan(options: dict[str, Any]) -> PrivacyPlan:
    """The plan for as many users as are declared; no data are looked at."""
    has = {field.name for field in fields(EmbeddingExperiment)}
    experiment = EmbeddingExperiment(**{name: value for name, value in options.items() if name in has})
    return experiment.decide(declared(options)).plan


def declared(options: dict[str, Any]) -> Any:
    """A source of which no more is known than what a recipe declares."""
    return SimpleNamespace(users=options["users"], size=options["size"], train=None)


@functools.cache
def epsilon_of(clients: float, **planned: Any) -> float:
    options = {"size": 112, **planned}
    return embedding_plan({**options, "clients": clients}).epsilon()


@each(OF_EMBEDDINGS, slow=4)
def test_an_embedding_plans_to_the_epsilon_that_it_states_for_one_person(row: Row):
    options, stated = options_of(row), about(row)
    named = ("users", "delta", "batch_size", "steps", "max_norm", "noise_multiplier", "quantile", "clients")
    planned = {name: options[name] for name in (*named, "mechanism", "participation") if name in options}
    if "epsilon" in options:
        planned["noise_multiplier"] = stated["noise_multiplier"]
        assert stated["epsilon"] <= options["epsilon"]
    assert 0.999 * stated["epsilon"] < epsilon_of(**planned) <= stated["epsilon"]


def test_an_ablation_without_noise_names_no_budget_and_promises_nothing():
    """Figures 5(a), 6 and 7 of Xu et al. 2022, and what the private rows are compared with."""
    for row in WITHOUT_A_PLAN:
        check_ablation(row)


def check_ablation(row: Row) -> None:
    options, stated = options_of(row), about(row)
    assert options["public"]
    assert not {"epsilon", "delta", "noise_multiplier"} & options.keys()
    assert stated["guarantee"].startswith("none: not private")
    assert "epsilon" not in stated
    has = {field.name for field in fields(EmbeddingExperiment)}
    experiment = EmbeddingExperiment(**{name: value for name, value in options.items() if name in has})
    if options["method"] in NOISELESS:
        decided = experiment.decide(declared(options))
        assert isinstance(decided, PublicDecision)
        sizes = (decided.steps, decided.batch_size, decided.clients.count, decided.rounds.population)
        assert sizes == tuple(options[name] for name in ("steps", "batch_size", "clients", "users"))
        assert decided.rounds.quantile == options.get("quantile")


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("xu2022/") and verb_of(name) == "embed"])
def test_heads_of_the_paper_begin_at_random_and_give_plain_products(name: str):
    """Algorithm 2: "randomly initialize head"; whatever the rule of this package is."""
    for label in labels(name):
        options = options_of((name, label))
        known = {one.name for one in fields(EmbeddingExperiment)}
        local = EmbeddingExperiment(**{one: value for one, value in options.items() if one in known}).local()
        assert (local.first_head, local.temperature) == ("random", None)
        assert local.head_scale == options.get("head_scale", 100.0)


def test_the_command_of_the_authors_of_fedemb_counts_one_person_twice():
    options = options_of(("xu2022/emnist", None))
    plan, named = embedding_plan(options), ("batch_size", "steps", "delta", "noise_multiplier")
    assert (plan.users, plan.epsilon()) == (6800, pytest.approx(62.1769, abs=1e-3))
    once = PrivacyPlan.calibrate(examples=6800, max_norm=1.0, **{name: options[name] for name in named})
    assert once.epsilon() == pytest.approx(9.27, abs=0.01)
    size = sum(value.numel() for value in create_embedding("lenet", channels=1, size=28).parameters())
    assert size == 453_632
    fixed = {"clients": 32, "client_epochs": 8, "client_batch_size": 32, "client_examples": 2048, "client_rate": 5e-3}
    fixed |= {"shuffle_buffer": 2048, "head_scale": 100, "learning_rate": 0.02, "client_momentum": 0.9, "max_norm": 1}
    assert {name: options[name] for name in fixed} == fixed


@each(extremes(CALIBRATED), slow=4)
def test_its_noise_is_the_least_that_meets_its_target(row: Row):
    options, sigma = options_of(row), about(row)["noise_multiplier"]
    accountant = options.get("accountant") or "pld"
    assert with_noise(options, sigma).cost(accountant=accountant) <= largest(options["epsilon"])
    assert with_noise(options, 0.999 * sigma).cost(accountant=accountant) > largest(options["epsilon"])


NAMED = ("optimizer", "schedule", "normalisation")
"""Options whose help lists the values; the placeholders of others list theirs, or anything may be given."""


def gone(verb: str, options: dict[str, Any]) -> list[str]:
    """The options that the verb does not have, or whose value it does not offer."""
    listed = {option.flag[2:].replace("-", "_"): option for page in page_of(load(verb))[1].values() for option in page}
    found = []
    for name, value in options.items():
        option = listed.get(name)
        offered = option and (option.purpose if name in NAMED else option.metavar if "|" in option.metavar else None)
        if option is None or (offered and f"{value}" not in re.findall(r"[\w-]+", offered)):
            found.append(name)
    return found


def test_no_recipe_has_an_option_or_a_value_that_is_gone():
    for name in NAMES:
        for label in labels(name):
            assert gone(verb_of(name), options_of((name, label))) == [], name
    planted = {"mechanism": "blt", "optimizer": "lion", "normalisation": "spectral", "temperature": 1.0}
    assert gone("train", {**planted, "mechanism": "tree", "steps": 4}) == ["optimizer", "normalisation", "temperature"]
    assert gone("train", planted) == [*planted]
    assert gone("embed", {"grouping": "hashed", "clients": 4}) == ["grouping"]


@pytest.mark.parametrize("folder", sorted({name.partition("/")[0] for name in NAMES}))
def test_it_says_what_to_expect_and_its_command_is_its_own_and_what_it_names_exists(folder: str):
    for name in NAMES:
        if name.partition("/")[0] == folder:
            check_recipe(name)


def check_recipe(name: str) -> None:
    for label in labels(name):
        stated = about((name, label))
        assert set(stated) >= ABOUT
        assert "epsilon" in stated or "not private" in stated["guarantee"]
    _, verb, what, *rest = shlex.split(table(name)[recipe.ABOUT]["command"])
    assert what == f"recipe:{name}"
    asked = cli.parse([verb, what, *rest])
    assert isinstance(asked, load(verb))
    assert recipe.read(what, asked.given, known(verb), verb=verb) == options_of((name, labels(name)[0]))
    for label in labels(name):  # its source and optimizer exist
        options = options_of((name, label))
        kind, _ = kinds.parse(options["source"])
        has = set(choices_of(Settings))
        given = {"learning_rate": 1.0} | options  # the board's recipes leave the rate to the rule
        descent = Settings(**{option: value for option, value in given.items() if option in has}).descent
        choices = {"learning_rate": descent.learning_rate, "momentum": descent.momentum}
        optim.create(descent.optimizer, nn.Linear(1, 1).parameters(), weight_decay=descent.weight_decay, **choices)
        optim.schedule(descent.schedule, steps=options["steps"], warmup=descent.warmup)
        assert verb_of(name) != "pretrain" or kinds.KINDS[kind].published or options["public"]


MODELS = {options_of((name, labels(name)[0]))["model"]: name for name in NAMES}


@pytest.mark.parametrize(
    "model",
    [pytest.param(one, marks=pytest.mark.slow) if "nf-resnet-" in one and "-50" not in one else one for one in MODELS],
)
def test_its_model_exists(model: str):
    options = options_of((MODELS[model], labels(MODELS[model])[0]))
    kind, argument = kinds.parse(options["source"])
    if model.startswith("timm:"):
        assert timm.is_model(model.removeprefix("timm:").partition(",")[0])
    elif kind == "features":
        models.create_head(model, classes=1000, width=1280)
    elif "task" in options:  # 10,000 words and 4 other tokens
        facts = {"classes": 10_004, "vocabulary": 10_004, "length": options["length"]}
        built = models.create_for_texts(model, **facts, next_words=True)
        assert sum(value.numel() for value in built.parameters()) == 4_050_748
    elif "vocabulary" in options:
        facts = {"classes": len(options["classes"]), "vocabulary": options["vocabulary"]}
        models.create_for_texts(model, **facts, length=options["length"])
    else:
        channels, size = SHAPES.get(argument or kind) or (options.get("channels", 3), options["size"])
        build(model, CLASSES.get(argument, 10), channels, size)


def test_a_recipe_that_overstates_its_privacy_would_be_found():
    digits, row = ("digits", None), ("de2022/table13", 1)
    assert plan({**options_of(digits), "epsilon": 3.1}).epsilon() > about(digits)["epsilon"]
    assert with_noise(options_of(row), 9.95).epsilon() > about(row)["epsilon"]
    assert replace(plan(options_of(row)), steps=880).epsilon() > about(row)["epsilon"]


# -- the tables of the papers ------------------------------------------------------------------------------------------

# Appendix C.5 of De et al. 2022: heading, noise multiplier, steps, learning rate of each column; batch size, delta.
SCALES = "1 21.1 250 {0}; 2 15.8 500 {0}; 4 12 1000 {0}; 8 9.4 2000 {0}"
TABLES = {
    "13": ("1 10 875 2; 2 6 1125 2; 3 5 1593 2; 4 4 1687 2; 6 3 1843 4; 8 3 2468 4", 4096, 1e-5),
    "14": ("1 40 906 2; 2 24 1156 2; 3 20 1656 2; 4 16 1765 2; 6 12 2007 4; 8 9.4 2000 4", 16_384, 1e-5),
    "15": ("8 2.5 71589 4", 16_384, 8e-7),
    "16": (SCALES.format(1), 16_384, 1e-5),
    "17": (SCALES.format(4), 16_384, 1e-5),
    "18": (SCALES.format(1), 16_384, 1e-5),
    "19": (SCALES.format(4), 16_384, 1e-5),
    "20": (
        "0.5 5 781 0.125; 1 5 164 1; 1.5 6 531 0.3; 2 6 906 0.3; 4 5 2171 0.3; 6 6 6421 0.1; 8 5 7226 0.1",
        4096,  # but for the first column
        1e-5,
    ),
    "21": ("0.5 28.7 250 25.6; 1 21.2 500 25.6; 2 15.7 1000 25.6; 4 11.8 2000 25.6; 8 9.1 4000 25.6", 262_144, 8e-7),
    "22": (
        "0.1 82.6 100 30; 0.5 57.2 1000 10; 1 29.9 1000 30; 2 15.8 1000 30; 4 8.4 1000 100; 8 4.6 1000 100",
        262_144,
        8e-7,
    ),
    "23-all": ("8 1 223939 0.1", 4096, 5e-7),
    "23-classifier": ("8 2 1374116 0.1", 4096, 5e-7),
}
CALIBRATED_TABLES = ("13", "14", "16", "17", "18", "19", "20")


@pytest.mark.parametrize("number", TABLES)
def test_the_rows_of_de_et_al_are_those_of_the_paper(number: str):
    columns, batch_size, delta = TABLES[number]
    shared = {"delta": delta, "max_norm": 1.0, "optimizer": "sgd", "schedule": "constant"}
    name = f"de2022/table{number}"
    wanted = [tuple(map(float, column.split())) for column in columns.split(";")]
    assert labels(name) == [column[0] for column in wanted]
    for epsilon, noise_multiplier, steps, learning_rate in wanted:
        size = 1024 if (number, epsilon) == ("20", 0.5) else batch_size
        own = {"epsilon": epsilon, "noise_multiplier": noise_multiplier, "steps": steps}
        options = options_of((name, epsilon))
        expected = shared | own | {"learning_rate": learning_rate, "batch_size": size}
        assert {option: options[option] for option in expected} == expected
        assert about((name, epsilon))["epsilon"] < epsilon
        if number in CALIBRATED_TABLES:
            del options["noise_multiplier"]
            assert options_of((f"{name}-pld", epsilon)) == options


SWEPT = [name for name in NAMES if re.match(r"de2022/(figure|table2-)", name)]


@pytest.mark.parametrize("name", SWEPT)
def test_what_de_et_al_tuned_varies_and_nothing_begins_on_the_edge(name: str):
    for label in labels(name):
        options = options_of((name, label))
        for option, values in table(name)["sweep"].items():
            value = options[option.replace("-", "_")]
            assert value in values
            assert option == "model" or min(values) < value < max(values)


def test_the_steps_of_figure_4_and_figure_9_spend_what_the_paper_says_and_no_more():
    for name, examples, epochs in (("figure4-nf-resnet-50-all", 1_271_167, 136), ("figure9a", 45_000, None)):
        options = options_of((f"de2022/{name}", None)) | {"examples": examples}
        found = plan(options)
        assert found.epsilon(accountant="rdp") <= options["epsilon"]
        assert replace(found, steps=found.steps + 5).epsilon(accountant="rdp") > options["epsilon"]
        assert epochs is None or round(found.expected_epochs) == epochs


@pytest.mark.parametrize("name", [name for name in NAMES if re.match(r"de2022/table(10|1[6-9]|20)", name)])
def test_a_new_classifier_of_a_wide_resnet_begins_as_in_appendix_c_1(name: str):
    width = build(table(name)["model"], 10, 3, 32).get_submodule("head").in_features
    assert table(name)["head-deviation"] == pytest.approx(width**-0.5, rel=1e-6)


OF_MEHTA = [name for name in NAMES if re.match(r"mehta2022/table[1239]-", name)]
RANGES = {"momentum": (1.6, "cosine", 8), "lamb": (0.01, "linear", 9)}
"""Of the optimizers in tables 6 and 7: rate and schedule here, and how many rates the paper tuned over."""
MODELS_OF_MEHTA = {
    "b16": "base_patch16",
    "l16": "large_patch16",
    "h14": "huge_patch14",
    "r50x3": "50x3",
    "r152x4": "152x4",
}


@pytest.mark.parametrize("name", OF_MEHTA)
def test_the_rows_of_mehta_et_al_are_ten_epochs_of_their_batches(name: str):
    private, momentum = not name.endswith("-nonprivate"), name.startswith(("mehta2022/table1-", "mehta2022/table9-"))
    layers = "last" if "-last" in name else "full"
    for label in labels(name):
        options, size = options_of((name, label)), label or 2**20
        assert options["max_norm"] == 1
        if private:
            assert (options["epsilon"], options["delta"], options["examples"]) == (10, 1e-6, 1_281_167)
        if size == 512:  # the column of the best figure without privacy
            assert (options["steps"], options["warmup"], options["optimizer"]) == (20_000, 500, "momentum")
            assert (options["learning_rate"], options["schedule"]) == (0.03, "cosine")
            continue
        assert (options["batch_size"], options["steps"]) == (size, round(10 * 1_281_167 / size))
        assert options.get("warmup", 0) == (round(0.25 * 1_281_167 / size) if size < 1_281_167 // 4 else 0)
        assert options["optimizer"] == ("momentum" if momentum else "lamb")
        rates = RANGES[options["optimizer"]]
        assert (options["learning_rate"], options["schedule"], options["head_bias"]) == (*rates[:2], -10)
        assert options.get("weight_decay", 0) == 0
        assert ("pretrained_rate" in options) == (layers == "full" and not momentum)
        if private:
            assert len(table(name)["sweep"]["learning-rate"]) == rates[2]
            assert ("pretrained-rate" in table(name)["sweep"]) == ("pretrained_rate" in options)
    assert table(name)["trainable"] == [{"full": "all", "last": "classifier"}[layers]]
    assert all(part not in name or word in table(name)["model"] for part, word in MODELS_OF_MEHTA.items())


OF_DAVODY = [name for name in NAMES if name.startswith("davody2020/table") and not name.endswith("-nonprivate")]


@pytest.mark.parametrize("private", OF_DAVODY)
def test_the_rows_of_davody_et_al_have_one_network_with_privacy_and_without(private: str):
    """In the augmented form: a norm after each trainable layer, the last as well."""
    public = f"{private}-nonprivate"
    assert table(private)["delta"] == 1e-5
    assert ("norm_last=1" in table(private)["model"]) == ("-" in private)
    assert table(private).get("public-examples") == (128 if "-bn" in private else None)
    assert all(table(private).get(name) == table(public).get(name) for name in ("model", "trainable", "pretrained"))
    assert ("pretrained" in table(private)) == ("table6" in private)
