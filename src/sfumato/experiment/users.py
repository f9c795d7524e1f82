"""Users as the unit of privacy: records kept per user, sampling of examples or users, and checks before a run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sfumato._cards import Detail
from sfumato._checks import SfumatoError, one_of, positive_integer
from sfumato.privacy import Example, PrivacyPlan, User
from sfumato.privacy.statements.display import rounded_up
from sfumato.privacy.statements.other_units import person_guarantee
from sfumato.privacy.unit import shown_by_plan

if TYPE_CHECKING:
    from sfumato.data import Source

SEVERAL = (2, 5)
"""Numbers of images of one person for which a note gives epsilon, if the real number is unknown."""


def check_choices(unit: str | None, per_user: int | None, per_step: int | None) -> None:
    """Refuses values of unit, per_user and per_step that are invalid for every source."""
    one_of(("example", "user"), optional=True, unit=unit)
    for name, value in (("per_user", per_user), ("per_step", per_step)):
        if value is not None and unit != "user":
            raise SfumatoError(
                f"`{name}={value}` applies to users, but the unit is an example", "give `unit=user`, or leave it out"
            )
    remedy = "give a number of records of each user, such as 10"
    positive_integer(optional=True, per_user=per_user, per_step=per_step, remedy=remedy)


def person_note(source: Source, plan: PrivacyPlan) -> str | None:
    """A note on what a guarantee for single examples means for a person with several of them; None for other units and
    for public data.

    If the users are known, the note gives epsilon for the user with the most records, a private figure for the owner
    alone. Otherwise it gives epsilon for some typical numbers of records.
    """
    if source.public or not isinstance(plan.unit, Example):
        return None
    kind = "texts" if source.tokens is not None else "images"
    if source.train.users is not None:
        from sfumato.data import most_of_one_user

        most = most_of_one_user(source.train)
        if most <= 1:
            return None
        images, epsilon = person_guarantee(plan, most)
        return (
            f"epsilon {rounded_up(epsilon)} for the person with the most {kind}, {images} (a private figure); "
            "`unit=user` covers each person as a whole"
        )
    would = [person_guarantee(plan, images) for images in SEVERAL if images <= plan.population]
    listed = ", ".join(f"{rounded_up(epsilon)} for a person with {images} {kind}" for images, epsilon in would)
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
    return plan.population if plan.users is None else None, plan.users


def cap_for_plan(source: Source, plan: PrivacyPlan) -> Source:
    """The source, capped as the plan requires."""
    return cap_records(source, plan.unit.at_most if isinstance(plan.unit, User) else None)


def records_of_a_step(per_step: int | None, at_most: int | None, *, fixed: bool) -> tuple[int | None, list[str]]:
    """The `per_step` of the plan, with its reason if it follows from the rule.

    By rule a user shows all kept records if their features are computed once, and a single one otherwise: a record more
    costs one gradient more, which a record of another user uses better.

    Args:
        per_step: as requested.
        at_most: G.
        fixed: whether the features of the records are fixed.
    """
    if per_step is not None:
        return shown_by_plan(per_step, at_most), []
    if fixed:
        return None, [Detail("per step all kept records (by rule: their features are computed once)")]
    return shown_by_plan(1, at_most), [Detail("per step 1 (by rule: gradients of different users say more)")]


def groups_of(source: Source) -> int:
    """The number of groups of users in the training part."""
    return len(np.unique(known_groups(source)))


def known_groups(source: Source) -> np.ndarray:
    """The group of each training record's user, text (N,). Refuses a source without groups."""
    if source.train.groups is None:
        raise SfumatoError(
            "grouping is by groups, but the source does not name the group of each user",
            "give a table with the column group, or an archive with groups_train; or use random grouping",
        )
    return source.train.groups


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
    planned, of_source, units = declared
    if planned != of_source:
        raise SfumatoError(
            f"the plan is for {planned} {units}, but the source has {of_source}, declared or counted",
            f"calibrate the plan with {units}=source.{units}, or declare the same number",
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

    if source.user_from != BY_CLASS or source.open_set or not isinstance(plan.unit, User):
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
            f"{shared} of the {source.users} training users also have test records, so the model would be tested on "
            "people whom it was trained on",
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

    rule = plan.participation
    for wrong, problem, remedy in (
        (unit.clients, "the plan has virtual clients, which are for embeddings", "make the plan without clients"),
        (
            rule.padded_size is not None,
            "truncated participation pads every step to one shape, but users have different numbers of records",
            "use Poisson sampling",
        ),
        (
            getattr(rule, "assignment", "random") != "random",
            "an order by position is for records, but users are sampled, and a user has no position",
            "give `order=random`",
        ),
    ):
        if wrong:
            raise SfumatoError(problem, remedy)
    check_cap(by_user(source.train)[0], unit)
    check_classes(source)
    if source.user_from != BY_CLASS or source.open_set:  # otherwise the parts share classes on purpose
        refuse_shared(source)
