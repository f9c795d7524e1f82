"""Users as the unit of training: how many records of each are kept, what is drawn, and what is refused beforehand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sfumato._checks import SfumatoError, one_of, positive_integer
from sfumato.privacy import Example, FixedOrder, FullBatch, Gaussian, Poisson, PrivacyPlan, User, user_rule
from sfumato.privacy.planning.requested import Request
from sfumato.privacy.statements.other_units import of_person
from sfumato.privacy.statements.presented import rounded_up

if TYPE_CHECKING:
    from sfumato.data import Source

SEVERAL = (2, 5)
"""Of how many images of one person a remark speaks, where nobody knows how many there are."""
TRAINED = ("examples", "users")
"""What may be drawn in training by users; virtual clients are for embeddings."""


def most_of_each(source: Source, unit: str | None, per_user: int | None, drawn: str | None) -> int | None:
    """G, how many records of each user are kept; None for all of them, and where the unit is an example.

    By rule as many as a user has on average, of the declared numbers: a public constant where both are.
    """
    from sfumato.data import owners, refuse_shared_records

    check_choices(unit, per_user, drawn)
    if unit != "user":
        return None
    if source.users is None:
        owners(source.train)  # refuses a source that does not say whose records it has
    if source.shared and drawn == "users":
        refuse_shared_records()
    if per_user is not None:
        return per_user
    if drawn == "users" or source.at_most:
        return source.at_most
    return max(1, math.ceil(source.examples * _users_of_each(source) / (source.users or 1)))


def _users_of_each(source: Source) -> float:
    """How many users are on a training record on average: one, but for shared records, of which it is public."""
    from sfumato.data import owners

    return len(owners(source.train).records) / len(source.train) if source.shared else 1


def check_choices(unit: str | None, per_user: int | None, drawn: str | None) -> None:
    """Refuse a unit, and what is chosen of users, that no source could be trained with."""
    if unit is not None:
        one_of("unit", unit, ("example", "user"))
    if unit != "user":
        for name, value in (("per_user", per_user), ("drawn", drawn)):
            if value is not None:
                raise SfumatoError(
                    f"`{name}={value}` is for users, and the unit is an example", "give `unit=user`, or leave it out"
                )
        return
    if drawn is not None:
        one_of("drawn", drawn, TRAINED)
    if per_user is not None:
        positive_integer("per_user", per_user, remedy="give how many records of each user are kept, such as 10")


def shared_reasons(source: Source) -> list[str]:
    """Why examples are drawn, under zero-out adjacency, where records have several users, or nobody."""
    from sfumato.data import owners

    degrees = owners(source.train).of_each_record
    nobodys = f", and {(degrees == 0).sum()} of nobody, of whom nothing is promised" if (degrees == 0).any() else ""
    return [
        "by rule: drawn examples, under zero-out adjacency (a record of several users belongs to none as a whole); who "
        f"is on which record is taken as public: {(degrees > 1).sum()} of {len(degrees)} are of several{nobodys}"
    ]


def in_neither_part(source: Source) -> str | None:
    """How many records were left out since the split parts their users; None for none."""
    if not source.in_neither_part:
        return None
    return (
        f"{source.in_neither_part} records are left out, whose users the split by user puts on both sides (a private "
        "figure); parts of your own would keep them"
    )


def several_of_one(source: Source, plan: PrivacyPlan) -> str | None:
    """What a promise for single examples is worth to a person who has several of them; None for other promises, and for
    data that are public.

    Of whom each record is it says what holds for the one with the most, a private figure for the owner's eyes; where
    nobody knows, what it would be for some numbers of them.
    """
    if source.public or not isinstance(plan.unit, Example):
        return None
    what = "texts" if source.tokens is not None else "images"
    if source.train.users is not None:
        from sfumato.data import owners

        most = int(owners(source.train).of_each_user.max(initial=0))
        if most <= 1:
            return None
        images, epsilon = of_person(plan, most)
        return (
            f"the promise is for single {what}: for the person with the most to train on, {images} of them, epsilon is "
            f"{rounded_up(epsilon)} (a private figure); --unit user promises for each person as a whole"
        )
    would = [of_person(plan, images) for images in SEVERAL if images <= plan.population]
    listed = ", ".join(f"{rounded_up(epsilon)} for {images}" for images, epsilon in would)
    return (
        f"the promise is for single {what}: a person who has several of them has a larger epsilon ({listed}); where "
        "the data say whose each one is, --unit user promises for each person as a whole"
    )


def kept(source: Source, at_most: int | None) -> Source:
    """The source with at most so many training records of each user; as it is for None, and where that was done."""
    if at_most is None or source.at_most == at_most:
        return source
    from sfumato.data import capped
    from sfumato.randomness import owner_key

    declared = None if "examples" in source.read or source.published else source.examples
    return capped(source, owner_key(), at_most, examples=declared)


def declared_by(plan: PrivacyPlan) -> tuple[int | None, int | None]:
    """The numbers of examples and of users that a plan declares of its source."""
    return None if plan.unit.drawn == "users" else plan.population, plan.users


def kept_for(source: Source, plan: PrivacyPlan) -> Source:
    """The source as a plan wants it."""
    return kept(source, plan.unit.at_most if isinstance(plan.unit, User) else None)


def _either(request: Request) -> bool:
    """Whether there are theorems for both, records that are drawn and users."""
    one_by_one = request.participation is None or isinstance(request.participation, (Poisson, FullBatch))
    return one_by_one and isinstance(request.mechanism, Gaussian)


def check_rule(request: Request, noise_multiplier: float | None) -> None:
    """Refuse a noise multiplier where `drawn_by_rule` is to compare the noise at one epsilon."""
    if noise_multiplier is not None and _either(request):
        raise SfumatoError(
            f"drawn must be given beside a noise multiplier, got noise_multiplier {noise_multiplier:g} alone: which "
            "to draw is decided by the noise at one epsilon",
            "give `drawn=users` or `drawn=examples`",
        )


def drawn_by_rule(
    source: Source,
    request: Request,
    *,
    gradients: int,
    steps: int,
    epsilon: float,
    delta: float | None,
    noise_multiplier: float | None,
) -> tuple[str, list[str]]:
    """What to draw, by the noise over the signal that either leaves at the same promise and as many gradients."""
    check_rule(request, noise_multiplier)
    if not _either(request):
        return "users", ["by rule: drawn users (this participation and noise have a theorem for these alone)"]
    users = source.users or 1
    rule = user_rule(
        users=users,
        records=source.at_most or 1,
        gradients=min(gradients, source.examples),
        steps=steps,
        epsilon=epsilon,
        delta=delta,
        population=source.examples,
    )
    told = [
        f"drawn {row.drawn}: noise over signal {row.orthogonal:.3g} where a user's gradients are orthogonal, "
        f"{row.parallel:.3g} where they agree"
        for row in (rule.examples, rule.users)
    ]
    drawn = rule.taken.drawn
    return drawn, [f"by rule: drawn {drawn} (less noise over the signal)", *told]


def counted(source: Source, plan: PrivacyPlan) -> tuple[str, int]:
    """What a plan's coins are tossed for, and how many of these the data hold."""
    if plan.unit.drawn == "examples":
        return "examples", len(source.train)
    from sfumato.data import owners

    return "users", len(owners(source.train).names)


def check(source: Source, plan: PrivacyPlan) -> None:
    """Refuse a plan that is not for this source, before anything is spent.

    **Guarantee.** What a plan for users takes as true of the data is looked at: each record has a user, and no user has
    more than G of them. That it is not refused tells of the data what any other check of them does.
    """
    declared: Any = plan.population, source.examples, "examples"
    if isinstance(plan.unit, User):
        _check_users(source, plan, plan.unit)
        declared = plan.users, source.users, "users"
        if plan.unit.drawn == "examples" and plan.population != source.examples:
            declared = plan.population, source.examples, "examples"
    planned, found, what = declared
    if planned != found:
        raise SfumatoError(
            f"the plan is for {planned} {what}, the source has {found} declared or counted",
            f"calibrate the plan with {what}=source.{what}, or declare the same number",
        )


def check_classes(source: Source) -> None:
    """Refuse a promise for users who are the classes of a head, where the list of classes was read.

    **Guarantee.** A head over all classes has a row for each, and every gradient goes through all of them. Where each
    class is one user and the list is what the data show, one user more is a row more for everybody, and a classifier
    names it; declared, the list is a public constant (unit: one user; adjacency: any).
    """
    from sfumato.data import BY_CLASS

    if source.user_from == BY_CLASS and "classes" in source.facts_read:
        raise SfumatoError(
            f"by `user_from={BY_CLASS}` each class is one user, and the list of classes that a head is made for, read "
            "from the data, would say who took part",
            "declare the `classes`; or train an embedding by fedemb, which has no such head (sfumato embed)",
        )


def class_of_one(source: Source, plan: PrivacyPlan) -> str | None:
    """What a promise for users means where each class is one user; None elsewhere."""
    from sfumato.data import BY_CLASS

    if source.user_from != BY_CLASS or source.declared.purpose.open_set or not isinstance(plan.unit, User):
        return None
    return (
        "each class is one user, so what the model knows of a class is what the promise hides: the smaller epsilon, "
        "the less a class can be recognised; embeddings tell people apart without it (sfumato embed)"
    )


def refuse_shared(source: Source) -> None:
    """Refuse users who stand in the training part and in what it is scored on; parts that know none are let pass."""
    from sfumato.data import shared_users
    from sfumato.randomness import owner_key

    if shared := shared_users(replace(source, held_out=None), owner_key()):
        raise SfumatoError(
            f"{shared} of the {source.users} users to train on have records to score on too, so accuracy would be "
            "measured on those who were trained on",
            "part the data by user, or give one part and let the keyed split do it",
        )


def check_cap(users: np.ndarray, unit: User) -> None:
    """Refuse more records of one user than the plan counts; `users` (N,) has the number of each record's own, or (E,)
    those of all users of each."""
    import numpy as np

    most = int(np.bincount(users).max(initial=0))
    if unit.at_most is not None and most > unit.at_most:
        raise SfumatoError(
            f"the plan keeps at most {unit.at_most} records of each user, and one in the source has {most}",
            "keep as many as the plan says (sfumato.data.capped)",
        )


def _check_users(source: Source, plan: PrivacyPlan, unit: User) -> None:
    from sfumato.data import BY_CLASS, owners, refuse_shared_records

    one_of("drawn", unit.drawn, TRAINED, remedy="train classifiers by examples or users; clients are for embeddings")
    graph = owners(source.train)
    if source.shared and not unit.shared:
        if unit.drawn == "users":
            refuse_shared_records()
        raise SfumatoError(
            "records of the source have several users, or nobody, and the plan takes each to be one user's",
            'make the plan with User(drawn="examples", shared=True) and zero-out adjacency',
        )
    check_cap(graph.users, unit)
    check_classes(source)
    if source.user_from != BY_CLASS or source.declared.purpose.open_set:  # the parts of a classifier share classes
        refuse_shared(source)
    if unit.drawn != "users":
        return
    rule = plan.participation
    if rule.padded_size is not None:
        raise SfumatoError(
            "truncated participation fills every step up to one shape, and users have different numbers of records",
            "take Poisson sampling, or draw examples",
        )
    if isinstance(rule, FixedOrder) and rule.assignment != "random":
        raise SfumatoError(
            f"order {rule.assignment} is of records, and users are drawn, who have neither a place in the file nor a "
            "time of their own",
            "give `order=random`",
        )
