"""Users as the unit of privacy: records kept per user, sampling of examples or users, and checks before a run."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sfumato._cards import Detail
from sfumato._checks import SfumatoError, one_of, positive_integer
from sfumato.privacy import Example, FixedOrder, FullBatch, Gaussian, Poisson, PrivacyPlan, User, user_rule
from sfumato.privacy.planning.by_name import Request
from sfumato.privacy.statements.curve import rounded_up
from sfumato.privacy.statements.other_units import person_guarantee

if TYPE_CHECKING:
    from sfumato.data import Source

SEVERAL = (2, 5)
"""Numbers of images of one person for which a note gives epsilon, if the real number is unknown."""
TRAINED = ("examples", "users")
"""Allowed values of `drawn` for classifiers. Virtual clients are for embeddings."""


def user_cap(source: Source, unit: str | None, per_user: int | None, drawn: str | None) -> int | None:
    """G, the number of records kept of each user; None for all records, and if the unit is an example.

    The default is the average number of records per user, from the declared numbers. It is a public constant if both
    numbers are.
    """
    from sfumato.data import by_user

    check_choices(unit, per_user, drawn)
    if unit != "user":
        return None
    if source.users is None:
        by_user(source.train)  # refuses a source without users
    if per_user is not None:
        return per_user
    if drawn == "users" or source.at_most:
        return source.at_most
    return max(1, math.ceil(source.examples / (source.users or 1)))


def check_choices(unit: str | None, per_user: int | None, drawn: str | None) -> None:
    """Refuses values of unit, per_user and drawn that are invalid for every source."""
    if unit is not None:
        one_of("unit", unit, ("example", "user"))
    if unit != "user":
        for name, value in (("per_user", per_user), ("drawn", drawn)):
            if value is not None:
                raise SfumatoError(
                    f"`{name}={value}` applies to users, but the unit is an example",
                    "give `unit=user`, or leave it out",
                )
        return
    if drawn is not None:
        one_of("drawn", drawn, TRAINED)
    if per_user is not None:
        positive_integer("per_user", per_user, remedy="give the number of records kept of each user, such as 10")


def person_note(source: Source, plan: PrivacyPlan) -> str | None:
    """A note on what a guarantee for single examples means for a person with several of them; None for other units and
    for public data.

    If the users are known, the note gives epsilon for the user with the most records, a private figure for the owner
    alone. Otherwise it gives epsilon for some typical numbers of records.
    """
    if source.public or not isinstance(plan.unit, Example):
        return None
    what = "texts" if source.tokens is not None else "images"
    if source.train.users is not None:
        from sfumato.data import most_of_one_user

        most = most_of_one_user(source.train)
        if most <= 1:
            return None
        images, epsilon = person_guarantee(plan, most)
        return (
            f"epsilon {rounded_up(epsilon)} for the person with the most {what}, {images} (a private figure); "
            "`unit=user` covers each person as a whole"
        )
    would = [person_guarantee(plan, images) for images in SEVERAL if images <= plan.population]
    listed = ", ".join(f"{rounded_up(epsilon)} for a person with {images} {what}" for images, epsilon in would)
    return f"epsilon {listed}; `unit=user` covers each person as a whole, if the data name the persons"


def cap_records(source: Source, at_most: int | None) -> Source:
    """The source with at most `at_most` training records of each user. Unchanged for None, or if already capped."""
    if at_most is None or source.at_most == at_most:
        return source
    from sfumato.data import cap_per_user
    from sfumato.randomness import owner_key

    declared = None if "examples" in source.read or source.published else source.examples
    return cap_per_user(source, owner_key(), at_most, examples=declared)


def declared_numbers(plan: PrivacyPlan) -> tuple[int | None, int | None]:
    """The numbers of examples and of users that a plan declares."""
    return None if plan.unit.drawn == "users" else plan.population, plan.users


def cap_for_plan(source: Source, plan: PrivacyPlan) -> Source:
    """The source, capped as the plan requires."""
    return cap_records(source, plan.unit.at_most if isinstance(plan.unit, User) else None)


def _both_have_theorems(request: Request) -> bool:
    """Whether both sampling of examples and sampling of users have a theorem."""
    one_by_one = request.participation is None or isinstance(request.participation, (Poisson, FullBatch))
    return one_by_one and isinstance(request.mechanism, Gaussian)


def check_rule(request: Request, noise_multiplier: float | None) -> None:
    """Refuses a noise multiplier if `choose_drawn` has to compare the noise at equal epsilon."""
    if noise_multiplier is not None and _both_have_theorems(request):
        raise SfumatoError(
            f"noise_multiplier {noise_multiplier:g} is given without drawn: the rule for drawn compares the noise at a "
            "given epsilon",
            "give `drawn=users` or `drawn=examples`",
        )


def choose_drawn(
    source: Source,
    request: Request,
    *,
    gradients: int,
    steps: int,
    delta: float | None,
    noise_multiplier: float | None,
    epsilon: float,
) -> tuple[str, list[str]]:
    """Chooses what to sample: whichever has less noise over signal, at equal guarantee and number of gradients."""
    check_rule(request, noise_multiplier)
    if not _both_have_theorems(request):
        return "users", [Detail("drawn users (by rule: for this participation and noise, only users have a theorem)")]
    users = source.users or 1
    rule = user_rule(
        users=users,
        records=source.at_most or 1,
        gradients=min(gradients, source.examples),
        steps=steps,
        delta=delta,
        population=source.examples,
        epsilon=epsilon,
    )
    comparison = [
        Detail(
            f"drawn {row.drawn}: noise over signal {row.orthogonal:.3g} if a user's gradients are orthogonal, "
            f"{row.parallel:.3g} if they are parallel"
        )
        for row in (rule.examples, rule.users)
    ]
    drawn = rule.better.drawn
    return drawn, [Detail(f"drawn {drawn} (by rule: less noise over signal)"), *comparison]


def count_candidates(source: Source, plan: PrivacyPlan) -> tuple[str, int]:
    """The sampling candidates of a plan, examples or users, and their number in the data."""
    if plan.unit.drawn == "examples":
        return "examples", len(source.train)
    from sfumato.data import by_user

    return "users", len(by_user(source.train)[1])


def is_far(declared: int, counted: int) -> bool:
    """Whether a declared number is so far from that in the data that a run learns less than it could."""
    return not 0.8 * counted <= declared <= 1.25 * counted


def check(source: Source, plan: PrivacyPlan) -> None:
    """Refuses a plan that does not fit this source, before any privacy is spent.

    **Guarantee.** The assumptions of a plan for users about the data are checked: each record has a user, and no user
    has more than G records. Passing the check reveals as much about the data as any other check of them does.
    """
    declared: Any = plan.population, source.examples, "examples"
    if isinstance(plan.unit, User):
        _check_users(source, plan, plan.unit)
        declared = plan.users, source.users, "users"
        if plan.unit.drawn == "examples" and plan.population != source.examples:
            declared = plan.population, source.examples, "examples"
    planned, of_source, what = declared
    if planned != of_source:
        raise SfumatoError(
            f"the plan is for {planned} {what}, but the source has {of_source}, declared or counted",
            f"calibrate the plan with {what}=source.{what}, or declare the same number",
        )


def check_classes(source: Source) -> None:
    """Refuses users as the unit if each class is one user and the class list was read from the data.

    **Guarantee.** A classifier's head has a row for each class, and every gradient passes through all rows. If each
    class is one user and the class list is read from the data, one more user adds a row for everybody, and the
    classifier names that user. A declared class list is a public constant (unit: one user; adjacency: any).
    """
    from sfumato.data import BY_CLASS

    if source.user_from == BY_CLASS and "classes" in source.facts_read:
        raise SfumatoError(
            f"with `user_from={BY_CLASS}` each class is one user, so a class list read from the data would reveal who "
            "took part",
            "declare the `classes`; or train an embedding with fedemb, which has no head over classes (sfumato embed)",
        )


def class_users_note(source: Source, plan: PrivacyPlan) -> str | None:
    """A note on what a guarantee for users means if each class is one user; else None."""
    from sfumato.data import BY_CLASS

    if source.user_from != BY_CLASS or source.declared.purpose.open_set or not isinstance(plan.unit, User):
        return None
    return (
        "each class is one user, so the guarantee hides what the model knows about a class: the smaller epsilon, the "
        "less a class can be recognised; embeddings tell people apart without classes (sfumato embed)"
    )


def refuse_shared(source: Source) -> None:
    """Refuses users with records in both the training and the test part. Parts without users pass."""
    from sfumato.data import shared_users
    from sfumato.randomness import owner_key

    if shared := shared_users(replace(source, held_out=None), owner_key()):
        raise SfumatoError(
            f"{shared} of the {source.users} training users also have test records, so accuracy would be measured on "
            "people whom the model was trained on",
            "split the data by user, or give a single part and leave the split to sfumato",
        )


def check_cap(users: np.ndarray, unit: User) -> None:
    """Refuses more records of one user than the plan allows. `users` has the number of each record's user (N,)."""
    import numpy as np

    most = int(np.bincount(users).max(initial=0))
    if unit.at_most is not None and most > unit.at_most:
        raise SfumatoError(
            f"the plan keeps at most {unit.at_most} records of each user, but a user of the source has {most}",
            "cap the source at that number (sfumato.data.capped)",
        )


def _check_users(source: Source, plan: PrivacyPlan, unit: User) -> None:
    from sfumato.data import BY_CLASS, by_user

    one_of("drawn", unit.drawn, TRAINED, remedy="train classifiers on examples or users; clients are for embeddings")
    check_cap(by_user(source.train)[0], unit)
    check_classes(source)
    if source.user_from != BY_CLASS or source.declared.purpose.open_set:  # otherwise the parts share classes on purpose
        refuse_shared(source)
    if unit.drawn != "users":
        return
    rule = plan.participation
    if rule.padded_size is not None:
        raise SfumatoError(
            "truncated participation pads every step to one shape, but users have different numbers of records",
            "use Poisson sampling, or give `drawn=examples`",
        )
    if isinstance(rule, FixedOrder) and rule.assignment != "random":
        raise SfumatoError(
            f"order {rule.assignment} is for records, but users are sampled, and a user has no position",
            "give `order=random`",
        )
