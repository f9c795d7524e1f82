"""Next-word prediction, small: python benchmarks/accuracy/next_words.py AG_NEWS_TEST.csv.gz

Two data sets on which a small network of the published form is trained. 800 synthetic people write three to seven
sentences of a grammar of 30 words; the unit is a person, with one tree of noise and with bands, in a fixed order, at
epsilon 18.9 and 8.2 (delta 1e-5), and without privacy. And the 7,600 texts of AG News' test file, of which the keyed
split trains on about 6,030: the unit is a text, at epsilon 8, and without privacy. Their list of 2,000 words is counted
in the first half of the same file, which stands for a public text here.

Goes on where it stopped; writes results/next-words.json. Half a minute for a run on synthetic people on one busy core,
4 and 20 minutes for those on AG News.
"""

from __future__ import annotations

import collections
import csv
import gzip
import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository root, for `benchmarks`

import sfumato
from benchmarks import RESULTS
from sfumato.data import Source, open_source
from sfumato.data.tokens import WORD

RESULT = RESULTS / "next-words.json"
SEEDS = range(3)
EPSILONS = (18.9, 8.2)
PEOPLE, BATCH, STEPS = 800, 100, 60
MODEL, OF_NEWS = "lstm,embedding=12,hidden=24", "lstm,embedding=32,hidden=64"
NOISES: dict[str, dict[str, Any]] = {"tree": {"mechanism": "tree"}, "bands": {"mechanism": "banded", "bands": 6}}
GRAMMAR = (
    ("the", "a"),
    ("red", "old", "small", "quick", "kind", "blue"),
    ("cat", "dog", "bird", "tree", "house", "child", "king"),
    ("sees", "likes", "finds", "paints", "follows"),
    ("the", "a"),
    ("cat", "dog", "bird", "tree", "house", "child", "king"),
    ("today", "again", "there", "slowly", "alone"),
)


def main(news: Path) -> None:
    """Measure what is missing, and print the table."""
    found = json.loads(RESULT.read_text()) if RESULT.exists() else {"runs": {}}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["SFUMATO_HOME"] = str(folder / "home")
        wanted = [("people", noise, epsilon, seed) for noise in NOISES for epsilon in EPSILONS for seed in SEEDS]
        wanted += [(data, "none", None, 0) for data in ("people", "news")] + [("news", "independent", 8.0, 0)]
        for data, noise, epsilon, seed in wanted:
            key = f"{data}, {noise}, epsilon {epsilon}, seed {seed}"
            if key not in found["runs"]:
                found["runs"][key] = measure(data, noise, epsilon, seed, folder, news)
                RESULT.write_text(json.dumps(found, indent=1) + "\n")
                print(key, found["runs"][key], flush=True)
        for data, noise, epsilon in dict.fromkeys(one[:3] for one in wanted):
            runs = [run for key, run in found["runs"].items() if key.startswith(f"{data}, {noise}, epsilon {epsilon},")]
            print(data, noise, epsilon, f"{statistics.mean(run['accuracy'] for run in runs):.4f}", len(runs))


def people(folder: Path) -> Source:
    """The sentences of synthetic people."""
    generator = np.random.default_rng(0)
    rows = ["text,user"]
    for person in range(PEOPLE):
        habits = [generator.dirichlet(np.ones(len(words))) for words in GRAMMAR]  # everybody has favourite words
        for _ in range(generator.integers(3, 8)):
            said = [generator.choice(words, p=own) for words, own in zip(GRAMMAR, habits, strict=True)]
            rows.append(f"{' '.join(said)},p{person}")
    (folder / "people.csv").write_text("\n".join(rows) + "\n")
    words = tuple(dict.fromkeys(word for some in GRAMMAR for word in some))
    return open_source(f"csv:{folder}/people.csv", owner_key=bytes(32), task="next-word", words=words, length=10)


def of_news(news: Path, **declared: Any) -> Source:
    """AG News, with a list of the most frequent words of its first half."""
    counts: collections.Counter[str] = collections.Counter()
    with gzip.open(news, "rt", encoding="utf-8") as stream:
        rows = list(csv.reader(stream))
    for row in rows[: len(rows) // 2]:
        counts.update(WORD.findall(" ".join(row[1:]).lower()))
    words = tuple(word for word, _ in counts.most_common(2000))
    return open_source(f"csv:{news}", owner_key=bytes(32), task="next-word", words=words, **declared)


def measure(data: str, noise: str, epsilon: float | None, seed: int, folder: Path, news: Path) -> dict[str, Any]:
    """The figures of one run, and what it took."""
    began = time.monotonic()
    source, model = (people(folder), MODEL) if data == "people" else (of_news(news), OF_NEWS)
    how: dict[str, Any] = {"directory": folder / f"{data}-{noise}-{epsilon}-{seed}", "threads": 1}
    if epsilon is None:
        shown = replace(source, public=True)
        run: Any = sfumato.pretrain(model, shown, steps=900, batch_size=64, learning_rate=0.2, **how)
    elif data == "people":
        users = {"unit": "user", "per_step": 256, "batch_size": BATCH, "participation": "fixed-order"}
        how |= {"steps": STEPS, "learning_rate": 0.5, "ema": 0.9, "delta": 1e-5, "seed": seed, "keep": 0}
        run = sfumato.train(model, source, epsilon=epsilon, **users, **NOISES[noise], **how)
    else:
        how |= {"steps": 60, "learning_rate": 2.0, "delta": 1e-5, "seed": seed, "keep": 0}
        run = sfumato.train(model, source, epsilon=epsilon, batch_size=source.examples, **how)
    figures = json.loads((Path(how["directory"]) / "evaluation.json").read_text())
    names = ("accuracy", "top5", "loss", "majority", "accuracy_of_all", "words", "users")
    known = {name: round(figures[name], 5) if figures[name] is not None else None for name in names}
    sigma = {} if epsilon is None else {"noise_multiplier": run.statement.plan.noise_multiplier}
    return known | sigma | {"seconds": round(time.monotonic() - began, 1)}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
