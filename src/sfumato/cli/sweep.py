"""sfumato sweep: a search for settings, whose privacy is never silent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any

import tyro

from sfumato.cli import space
from sfumato.cli.choices import ModelChoices
from sfumato.cli.options import Candidates, ModeOfSearch, Processes, ScoreNoise, Shape, Share, SourceText, Vary
from sfumato.cli.private import PrivateChoices

OF_THE_PLAN = ("epsilon", "delta", "noise_multiplier", "batch_size", "steps", "max_norm")
# Images are read once for all runs, and zoom decides how.
VARIED = (*(field.name for field in fields(ModelChoices) if field.name != "zoom"), *OF_THE_PLAN)
MODES = ("public", "private", "uncovered")


@dataclass(frozen=True, kw_only=True)
class Sweep(PrivateChoices):
    """Search for settings on a validation part, and say what the search costs.

    SOURCE or RECIPE and options are as in sfumato train; --vary, or the recipe's table [sweep], says what varies. On
    public data a search costs nothing. On private data it is either a private selection (--search private): a random
    number of candidates, of which only the best is released, with one promise for all of it; or not covered (--search
    uncovered): each run's statement says so, and what all of them cost together. A search that was cut goes on when the
    same command is given again.
    """

    what: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE|RECIPE")]
    """Where the images are, or a recipe."""

    vary: Vary = ()
    """What varies: NAME=A,B,C, or NAME=LOW..HIGH, or NAME=log:LOW..HIGH."""
    one_at_a_time: bool = False
    """Change one thing at a time, and show what each change does; source may then vary too, over caches of features."""
    search: ModeOfSearch = None
    """How the search treats privacy."""
    candidates: Candidates = None
    """Draw so many settings at random; in a private selection, so many on average."""
    shape: Shape = None
    """Private selection: the law of the number of candidates; 0 is logarithmic, 1 geometric, inf Poisson."""
    score_noise: ScoreNoise = None
    """Private selection: standard deviation of the noise on a candidate's number of right answers."""
    validation: Share = None
    """Share of the training part that is put aside to score on."""
    score_on: SourceText = None
    """Score on the test part of this public source instead."""
    processes: Processes = None
    """How many runs at once."""
    dry_run: bool = False
    """Say what would be run and what it would cost, and spend nothing."""
    json: bool = False
    """End with one JSON object on standard output."""

    def run(self) -> int:
        """Search, and show what was found."""
        asked = self.with_recipe(self.what)
        from sfumato.cli import factors, search_open, search_private
        from sfumato.training.progress import Bars

        varied = (*VARIED, "source") if self.one_at_a_time else VARIED
        given = [text for together in self.vary for text in together]
        rules = space.read(given, self.what, varied, trust_code=self.trust_code)
        mode = asked.mode(rules)
        with Bars() as progress:
            if self.one_at_a_time:
                return factors.factors(asked, rules, mode, progress)
            if mode == "private":
                return search_private.search(asked, rules, progress)
            return search_open.search(asked, rules, mode, progress)

    def mode(self, rules: Mapping[str, Any]) -> str:
        """How this search treats privacy: as asked for, else public, where the data are."""
        from sfumato._checks import SfumatoError, one_of, positive_integer
        from sfumato.data import is_public

        for name in ("processes", "candidates"):
            if getattr(self, name) is not None:
                positive_integer(name, getattr(self, name))
        public = self.public or (is_public(self.source or "") and not self.private)
        if self.search is None and not public:
            raise SfumatoError(
                "a search on private data costs privacy, and --search does not say how it is to be paid",
                "give --search private (one promise for all of it, only the winner is released) or --search uncovered "
                "(each statement says that the search is not covered); or --public if the data are",
            )
        mode = one_of("search", self.search or "public", MODES)
        if mode == "public" and not public:
            raise SfumatoError("--search is public, but the data are private", "give --public if they are not")
        if self.one_at_a_time and (mode == "private" or self.candidates is not None):
            raise SfumatoError(
                "--one-at-a-time shows all of its runs, which a private selection must not",
                "leave it out, or give --search uncovered and no --candidates",
            )
        if mode != "private" and (self.shape is not None or self.score_noise is not None):
            raise SfumatoError(
                "--shape and --score-noise belong to a private selection", "leave them out, or give --search private"
            )
        if mode == "private" and self.score_on is not None:
            beside = [name for name in ("score_noise", "validation") if getattr(self, name) is not None]
            if beside:
                raise SfumatoError(
                    f"--score-on is given, and {', '.join(beside)} beside it, which it has no use for", "leave one out"
                )
        searched = [name for name in OF_THE_PLAN if name in rules]
        if mode == "private" and searched:
            raise SfumatoError(
                f"a private selection cannot vary {', '.join(searched)}: one plan trains all of its candidates",
                "choose them beforehand, with sfumato tradeoff",
            )
        return mode
