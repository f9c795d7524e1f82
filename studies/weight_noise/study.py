"""The weight-noise study: networks that tolerate noisy weights (Davody et al. 2020, section 2, tables 2 to 4)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sfumato._checks import SfumatoError
from sfumato._files import write
from sfumato.data import Source, Transform, hold_out, open_source
from sfumato.experiment.settings import Performance
from sfumato.observers.progress import Progress, default_progress
from sfumato.randomness import RunKey, owner_key
from sfumato.runs import pins
from sfumato.runs.directory import RunDirectory
from sfumato.runs.owner import uses
from sfumato.search.sweeping import write_record
from sfumato.training.job import PublicJob
from sfumato.training.preparation.building import build, transform_for
from sfumato.training.preparation.prepare import configure_torch, own_threads
from sfumato.training.preparation.start import Start
from sfumato.training.steps import PUBLIC
from sfumato.training.weights import check_choices
from studies.weight_noise.course import train_noisy
from studies.weight_noise.design import Design
from studies.weight_noise.page import page_of_noise
from studies.weight_noise.results import PILOT, NoiseStudy, last_of, make_cells, row_of

FILE, ROWS, PAGE = "noise-study.json", "runs.jsonl", "report.html"
PIECE = 4096


@own_threads()
def noise_study(
    source: Any,
    models: str | Sequence[str],
    *,
    directory: str | os.PathLike[str],
    public: bool = False,
    not_private: bool = False,
    device: str | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
    **choices: Any,
) -> NoiseStudy:
    """Train every form at every deviation, or resume the study. Measures accuracies, convergence and slow-downs.

    Args:
        source: the name of a source, such as "torchvision:MNIST", or an opened `Source`.
        models: the name of one model, or of several.
        directory: the directory of runs.jsonl (a line for each finished run), noise-study.json and the page. Finished
            runs are not repeated. A later call may add models, normalisations, deviations and runs.
        public: the owner's declaration that the records of a source given by name are public.
        not_private: study private data nevertheless. The result and the page then say that nothing here is private.
        device, threads: performance settings.
        progress: where to report progress.
        choices: fields of `Design`.

    Raises:
        SfumatoError: private data without `not_private`, a value out of range, or another study in the directory.

    **Guarantee.** None: runs are trained and measured without privacy.
    """
    progress, place = default_progress(progress), Path(directory)
    design = Design(models=(models,) if isinstance(models, str) else models, **choices)
    if not isinstance(source, Source):
        source = open_source(source, owner_key=owner_key(), public=True if public else None)
    if not source.public and not not_private:
        raise SfumatoError(
            f"a noise study trains without privacy, but this {source.kind} source is private",
            "declare it public (`public=True`) if it is, or say that the study is not private (`not_private=True`)",
        )
    if design.validation_fraction:
        source, _ = hold_out(source, owner_key(), design.validation_fraction)
    if (warning := uses.declared_public_note(source)) is not None:
        progress.report(warning)
    device, threads = configure_torch(Start(device=device, threads=threads))
    study = _Study(design, source, place, Performance(device=device, threads=threads, micro_batch=design.batch_size))
    for form in design.forms:  # refuse untrainable forms before the first run
        study.job(form, design.deviations[0], design.learning_rates[0], PILOT)
    record = {"data": source.fingerprint, **design.run_choices}
    write_record(place, record, FILE)
    study.read()
    study.train(progress)
    found = make_cells(design, study.rows, source, study.rates)
    directory_of = RunDirectory(place)
    result = {**record, **found.to_dict(), "environment": pins.environment()}
    directory_of.write_json(FILE, result, private=not source.public)
    write(place / PAGE, page_of_noise(found.to_dict()).encode(), private=not source.public)
    return found


class _Study:
    """The runs of a study, finished or not."""

    def __init__(self, design: Design, source: Source, place: Path, performance: Performance):
        self._design, self._source, self._performance = design, source, performance
        self._directory = RunDirectory(place)
        self._constants = _constants(source)
        self.rows: list[dict[str, Any]] = []
        self.rates: dict[str, float] = {}

    def read(self) -> None:
        """Read the finished runs. Removes a line that is incomplete because the process was killed."""
        self.rows = self._directory.rows(ROWS)
        self._directory.write_rows(self.rows, ROWS)

    def train(self, progress: Progress) -> None:
        """Train the missing runs, and choose the learning rate of each form."""
        design, rates = self._design, self._design.learning_rates
        pilots = [(form, sigma, rate) for form in design.forms for sigma in design.deviations for rate in rates]
        if len(rates) > 1:
            progress.begin("choosing learning rates", len(pilots))
            for done, (form, sigma, rate) in enumerate(pilots, 1):
                self._run_row(form, sigma, rate, PILOT, progress)
                progress.advance(done)
        for form in design.forms:
            self.rates[form] = max(rates, key=lambda rate, form=form: self._mean_of_pilots(form, rate))
            if len(rates) > 1:
                progress.report(f"{form}: learning rate {self.rates[form]:g}")
        left = list(self._runs())
        progress.begin("training with noisy weights", len(left))
        for done, (form, sigma, number) in enumerate(left, 1):
            self._run_row(form, sigma, self.rates[form], number, progress)
            progress.advance(done)

    def job(self, form: str, deviation: float, rate: float, number: int) -> PublicJob:
        """The job of one run. Its key follows from the seed, the form, the deviation and the number."""
        design, source = self._design, self._source
        settings = design.settings(form, rate)
        key = RunKey.from_seed(design.seed, f"noise study, {form}, deviation {deviation!r}, run {number}")
        module = build(None, source, settings, key).to(self._performance.device)
        source.images_for(settings.views)
        per_epoch = len(source.train) // design.batch_size
        if per_epoch < 1:
            raise SfumatoError(
                f"batch_size must not exceed the number of examples, got {design.batch_size} of {len(source.train)}",
                "give a smaller one",
            )
        check_choices(module, settings, steps=design.epochs * per_epoch)
        transform = transform_for(module, source, settings)
        if isinstance(transform, Transform) and self._constants is not None:
            mean, std = self._constants
            transform = replace(transform, mean=mean, std=std)
        return PublicJob(
            module=module,
            source=source,
            settings=settings,
            steps=design.epochs * per_epoch,
            batch_size=design.batch_size,
            performance=self._performance,
            transform=transform,
            key=key,
            kind=PUBLIC,
        )

    def _runs(self) -> Iterator[tuple[str, float, int]]:
        """All runs except the pilots: the first run of every form and deviation, then the second runs, and so on."""
        for number in range(1, self._design.runs + 1):
            for form in self._design.forms:
                for deviation in self._design.deviations:
                    yield form, deviation, number

    def _run_row(self, form: str, deviation: float, rate: float, number: int, progress: Progress) -> dict[str, Any]:
        """The line of a run. Trains the run if it has none."""
        wanted = {"model": form, "learning_rate": rate, "deviation": deviation, "run": number}
        known = next((row for row in self.rows if wanted.items() <= row.items()), None)
        if known is not None:
            return known
        took = train_noisy(self.job(form, deviation, rate, number), deviation)
        row = wanted | row_of(took)
        self._directory.append_row(row, ROWS)
        self.rows.append(row)
        what = f"pilot at learning rate {rate:g}" if number == PILOT else f"run {number}"
        progress.report(f"{form}, deviation {deviation:g}, {what}: {took.accuracy:.2%}")
        return row

    def _mean_of_pilots(self, form: str, rate: float) -> float:
        found = [
            last_of(row)
            for row in self.rows
            if (row["model"], row["learning_rate"], row["run"]) == (form, rate, PILOT)
            and row["deviation"] in self._design.deviations
        ]
        return float(np.mean(found)) if found else 0.0


def _constants(source: Source) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """The mean and the standard deviation of the training pixels, divided by 255, per channel; None without images."""
    if source.cache is not None or len(source.shape) != 3:
        return None
    total, squares, count = np.zeros(source.channels), np.zeros(source.channels), 0
    for start in range(0, len(source.train), PIECE):
        pixels = source.train.take(slice(start, start + PIECE)).astype(np.float64).reshape(-1, source.channels) / 255
        total, squares, count = total + pixels.sum(0), squares + (pixels**2).sum(0), count + len(pixels)
    mean = total / count
    deviation = np.sqrt(np.maximum(squares / count - mean**2, 0))
    return tuple(mean.tolist()), tuple(np.where(deviation > 0, deviation, 1.0).tolist())
