"""The sampler's distribution: inclusion probability, independence across records and steps, empty batches."""

import pytest

from sfumato import PrivacyPlan, RunKey, Sampler


def poisson(examples: int, batch_size: int) -> PrivacyPlan:
    """Batches of all examples are full batches."""
    return PrivacyPlan.calibrate(examples=examples, batch_size=batch_size, steps=1, noise_multiplier=1.0, delta=1e-5)


@pytest.mark.parametrize("batch_size", [1, 20, 777])
def test_the_coins_that_come_up_are_those_below_q_and_no_other(batch_size):
    """A probability that is wrong by a hundredth is too little to see in few draws, and too much for the promise."""
    key, records = RunKey.from_seed(0), 200_000
    sampler = Sampler(poisson(1000, batch_size), key, records=records)
    for step in (0, 3):
        coins = key.generator("sampling", step).random(records)
        assert sampler.draw(step).tolist() == [index for index in range(records) if coins[index] < batch_size / 1000]


def test_another_key_draws_others_and_the_same_key_the_same():
    rule = poisson(100, 20)
    one, again, other = (Sampler(rule, RunKey.from_seed(seed), records=100) for seed in (0, 0, 1))
    assert one.draw(5).tolist() == again.draw(5).tolist() != other.draw(5).tolist()
    assert one.draw(5).tolist() != one.draw(6).tolist()


@pytest.mark.parametrize(
    "far", [*(2**power for power in (1, 8, 16, 20)), *(10**power for power in range(1, 7)), 999, 1001]
)
def test_no_participants_come_again(far):
    sampler = Sampler(poisson(100, 20), RunKey.from_seed(0), records=100)
    for step in (0, 7):
        assert sampler.draw(step).tolist() != sampler.draw(step + far).tolist()


def test_adding_a_record_moves_nobody_else_s_coin():
    rule = poisson(100, 20)
    few, more = (Sampler(rule, RunKey.from_seed(0), records=records) for records in (99, 100))
    for step in range(50):
        assert few.draw(step).tolist() == [index for index in more.draw(step).tolist() if index < 99]


@pytest.mark.parametrize("records", [3, 12])
def test_full_batch_is_everyone_there_is_whatever_was_declared(records):
    """If it ended at the declared N, a record that leaves would let another one in: two would change."""
    sampler = Sampler(poisson(7, 7), RunKey.from_seed(0), records=records)
    assert sampler.draw(0).tolist() == list(range(records))
