"""The likelihood-ratio attack on scores whose law is known."""

import numpy as np
import pytest
import torch
from scipy import stats

from sfumato import PrivacyPlan, SfumatoError
from sfumato.search import membership
from sfumato.search.membership import attack, fit_gaussians, phi

RECORDS, SHADOWS = 2000, 100


@pytest.fixture(scope="module")
def promise():
    return PrivacyPlan.calibrate(examples=1000, batch_size=1000, steps=1, epsilon=1.0, delta=1e-5)


def scores(moved, *, shadows=SHADOWS, seed=0):
    """phi of records whose law is N(own mean, 1) without them and moves by so much with them."""
    rng = np.random.default_rng(seed)
    means, members = rng.normal(size=RECORDS) * 3, rng.random(RECORDS) < 0.5
    trained_with = rng.random((shadows, RECORDS)) < 0.5
    target = means + moved * members + rng.normal(size=RECORDS)
    found = means + moved * trained_with + rng.normal(size=(shadows, RECORDS))
    return target, found, trained_with, members


@pytest.mark.parametrize("variant", membership.VARIANTS)
def test_it_is_as_good_as_the_best_test_of_gaussians(promise, variant):
    """Of N(0, 1) against N(3, 1): TPR(a) = Phi(Phi^-1(a) + 3), which Neyman and Pearson's test has."""
    found = attack(*scores(3.0), plan=promise, variant=variant)
    rate = found.rates[1]
    best = stats.norm.cdf(stats.norm.ppf(0.01) + 3)
    assert rate.true_positives == pytest.approx(best, abs=0.1)
    assert rate.true_positives_at_least < rate.true_positives < rate.true_positives_at_most
    assert found.auc[0] == pytest.approx(stats.norm.cdf(3 / np.sqrt(2)), abs=0.02)
    assert found.exceeds


def test_what_moves_no_more_than_the_promise_allows_stays_beneath_it(promise):
    """The Gaussian of the promise itself, which no attack on it can exceed."""
    mu = 1 / promise.noise_multiplier
    for seed in range(2):
        found = attack(*scores(mu, seed=seed), plan=promise)
        assert not found.exceeds
        for rate in found.rates:
            assert rate.true_positives_at_least <= rate.allowed_at_most
            assert rate.allowed <= rate.allowed_at_most


def test_few_shadow_models_share_one_variance():
    _, found, trained_with, _ = scores(3.0, shadows=20)
    assert len(np.unique(fit_gaussians(found, trained_with)[1])) == 1
    _, found, trained_with, _ = scores(3.0, shadows=membership.OWN_VARIANCE)
    mean, deviation = fit_gaussians(found, trained_with)
    assert len(np.unique(deviation)) == RECORDS
    own = found[trained_with[:, 7], 7]
    assert mean[7] == pytest.approx(own.mean())
    assert deviation[7] == pytest.approx(own.std(ddof=1))


def test_the_bound_of_false_alarms_holds_for_a_threshold_chosen_on_the_same_records():
    """The rate behind the threshold exceeds it in 2.5% of repetitions, not in more."""
    rng, missed, repetitions = np.random.default_rng(0), 0, 1000
    for _ in range(repetitions):
        others = np.sort(rng.random(150))[::-1]
        rate = membership._result_at_rate(0.02, others, others, None)
        missed += 1 - others[rate.alarms] > rate.false_positives_at_most
    assert stats.binomtest(missed, repetitions, 0.025).pvalue > 1e-3


def test_the_curve_rises_from_nothing_to_all(promise):
    found = attack(*scores(3.0), plan=None)
    assert found.rates[0].allowed is None
    assert not found.exceeds
    assert (np.diff(found.curve, axis=0) >= 0).all()
    assert found.curve[0][0] == 0
    assert found.curve[-1] == (1.0, 1.0)
    area = np.trapezoid([y for _, y in found.curve], [x for x, _ in found.curve])
    assert area == pytest.approx(found.auc[0], abs=0.02)
    data = found.to_dict()
    assert data["sentence"] == found.sentence
    assert "An estimate" in found.sentence
    assert data["rates"][0]["exceeds"] is False


def test_phi_is_the_logit_of_the_probability_of_ones_own_class():
    logits, labels = torch.randn(4, 6, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0, 1, 2])
    p = logits.double().softmax(-1).gather(-1, labels.expand(4, 6)[..., None])[..., 0]
    np.testing.assert_allclose(phi(logits, labels, "softmax"), torch.logit(p), rtol=1e-6)
    p = logits.double().sigmoid().gather(-1, labels.expand(4, 6)[..., None])[..., 0]
    np.testing.assert_allclose(phi(logits, labels, "sigmoid"), torch.logit(p), rtol=1e-6)
    sure = torch.tensor([[200.0, 0.0, 0.0]])
    assert phi(sure, torch.tensor([0]), "softmax")[0] == pytest.approx(200 - np.log(2))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t, s, w, m: (t, s, w, np.ones_like(m)), "2000 of 2000 records were trained on"),
        (lambda t, s, w, m: (t * np.nan, s, w, m), "not finite"),
        (lambda t, s, w, m: (t, s[:2], w[:2], m), "train more shadow models"),
    ],
)
def test_what_says_nothing_is_refused(change, words):
    with pytest.raises(SfumatoError, match=words):
        attack(*change(*scores(1.0)), plan=None)
    with pytest.raises(SfumatoError, match="variant"):
        attack(*scores(1.0), plan=None, variant="sideways")
