"""Planted bugs: python benchmarks/mutants.py [NAME ...]

Each of them breaks a promise in one place of a copy of the package, and the tests that should notice are run against
the copy. One that survives shows a promise that no test holds up. Writes results/mutants.json: for each bug the test
that has caught it. A bug whose text is not there any more is an error, so that the list keeps up with the code.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULT = Path(__file__).parent / "results" / "mutants.json"


@dataclass(frozen=True)
class Bug:
    """One planted bug.

    Args:
        name: what it breaks.
        file: in src/sfumato.
        right, wrong: the text that stands there once, and what is put in its place.
        tests: files or single tests, in tests/.
    """

    name: str
    file: str
    right: str
    wrong: str
    tests: tuple[str, ...]


BUGS = (
    # -- promises
    Bug(
        "the accountant is told half of q",
        "privacy/theorems/poisson_gaussian.py",
        "one = distribution_of_one(self.sigma, self.probability, width)",
        "one = distribution_of_one(self.sigma, self.probability / 2, width)",
        ("privacy/test_theorems.py",),
    ),
    Bug(
        "Renyi DP forgets the steps",
        "privacy/theorems/poisson_gaussian.py",
        "PoissonSampledDpEvent(self.probability, one), self.steps",
        "PoissonSampledDpEvent(self.probability, one), max(1, self.steps - 1)",
        ("privacy/test_theorems.py",),
    ),
    Bug(
        "full-batch plans are composed as if the noise added up",
        "privacy/theorems/composed_gaussian.py",
        "OneGaussian(precision=self.precision + other.precision)",
        "OneGaussian(precision=max(self.precision, other.precision))",
        ("privacy/test_theorems.py", "runs/test_uses.py"),
    ),
    Bug(
        "calibration overshoots the budget",
        "privacy/calibration.py",
        "    while spent(value, FINE_GRID) > target:",
        "    while spent(value, FINE_GRID) > 1.01 * target:",
        ("privacy/test_plan.py",),
    ),
    Bug(
        "a sentence rounds epsilon down",
        "privacy/statement.py",
        "to_integral_value(ROUND_CEILING)",
        "to_integral_value()",
        ("privacy/test_statement.py",),
    ),
    Bug(
        "a gap is read for a separation",
        "privacy/participation/fixed_order.py",
        "        return self.bins(population)\n\n    @property\n    def adjacencies",
        "        return self.bins(population) + 1\n\n    @property\n    def adjacencies",
        ("privacy/test_participation.py", "privacy/theorems/test_tree_aggregation.py"),
    ),
    Bug(
        "a node of a tree counts a unit that takes part in several of its steps once",
        "privacy/theorems/tree_aggregation.py",
        "** (2 if width > gap else 1)",
        "** 1",
        ("privacy/theorems/test_tree_aggregation.py",),
    ),
    Bug(
        "a completed tree counts the nodes of its own steps alone",
        "privacy/theorems/tree_aggregation.py",
        "1 << (length - 1).bit_length() if completed else length",
        "length",
        ("privacy/theorems/test_tree_aggregation.py",),
    ),
    Bug(
        "trees before the last one are forgotten",
        "privacy/theorems/tree_aggregation.py",
        "(whole, np.arange(earlier) * length)",
        "(whole, np.arange(0) * length)",
        ("privacy/theorems/test_tree_aggregation.py",),
    ),
    Bug(
        "a rising column of C is taken for a falling one",
        "privacy/theorems/toeplitz.py",
        "    above = np.maximum.accumulate(np.abs(column)[::-1])[::-1]",
        "    above = np.abs(column)",
        ("privacy/theorems/test_toeplitz.py",),
    ),
    Bug(
        "a second participation counts on its own, not together with the first",
        "privacy/theorems/toeplitz.py",
        "    return float(moved @ moved)",
        "    return float(above @ above) * -(-len(above) // gap)",
        ("privacy/theorems/test_toeplitz.py",),
    ),
    Bug(
        "banded noise counts over one coefficient alone",
        "privacy/theorems/cyclic_banded.py",
        " / math.hypot(*_coefficients(plan))",
        "",
        ("privacy/theorems/test_cyclic_banded.py",),
    ),
    Bug(
        "a group's next turn comes within the reach of a band",
        "privacy/theorems/cyclic_banded.py",
        "        if bands > groups:",
        "        if bands > groups + 1:",
        ("privacy/theorems/test_cyclic_banded.py",),
    ),
    Bug(
        "a group's examples are drawn as if they were all examples",
        "privacy/participation/cyclic_poisson.py",
        "        return self.groups * self.batch_size / population",
        "        return self.batch_size / population",
        ("privacy/theorems/test_cyclic_banded.py",),
    ),
    Bug(
        "a turn that has begun is not counted",
        "privacy/theorems/cyclic_banded.py",
        "        turns = -(-steps // rule.groups)",
        "        turns = max(1, steps // rule.groups)",
        ("privacy/theorems/test_cyclic_banded.py",),
    ),
    Bug(
        "a cut of the batch costs nothing",
        "privacy/theorems/truncated_gaussian.py",
        "        truncated_batch_size=largest,",
        "        truncated_batch_size=population,",
        ("privacy/theorems/test_truncated_gaussian.py",),
    ),
    Bug(
        "steps of different cuts are joined as one",
        "privacy/theorems/truncated_gaussian.py",
        "if isinstance(other, TruncatedGaussians) and replace(other, steps=self.steps) == self:",
        "if isinstance(other, TruncatedGaussians):",
        ("privacy/theorems/test_truncated_gaussian.py",),
    ),
    Bug(
        "that trees are to be completed is not heard",
        "privacy/requested.py",
        "completed=bool(complete_trees)",
        "completed=False",
        ("privacy/test_requested.py",),
    ),
    Bug(
        "runs of both adjacencies are composed for that of the first",
        "runs/uses.py",
        'many = [replace(plan, adjacency="zero-out") for plan in many]',
        "many = [replace(plan, adjacency=many[0].adjacency) for plan in many]",
        ("runs/test_uses.py",),
    ),
    Bug(
        "more runs are counted as more steps of one",
        "privacy/selection.py",
        "training = one.with_(*[one] * (runs - 1)).epsilon(at, accountant=accountant)",
        "training = self.plan.epsilon(at, steps=runs * self.plan.steps, accountant=accountant)",
        ("privacy/test_selection.py",),
    ),
    Bug(
        "a private selection leaves out the noise that was asked for",
        "search/selection.py",
        "if (value := getattr(experiment, name)) not in (None, _PAIR.get(name)):",
        "if (value := getattr(experiment, name)) is ...:",
        ("search/test_search.py",),
    ),
    Bug(
        "a private selection varies the plan's participation and mechanism",
        "search/selection.py",
        "*(one.name for one in fields(Budget)), *pair)",
        "*(one.name for one in fields(Budget)),)",
        ("search/test_search.py",),
    ),
    Bug(
        "every rule holds for every adjacency",
        "privacy/theorems/__init__.py",
        "    if plan.adjacency not in allowed:",
        "    if False:",
        ("privacy/test_participation.py",),
    ),
    Bug(
        "records with a time of their own are taken again after the last one",
        "privacy/plan.py",
        "        if most is not None and self.steps > most:",
        "        if False:",
        ("privacy/test_participation.py",),
    ),
    Bug(
        "zero-out is stated in the words of add-or-remove",
        "privacy/statement.py",
        "        neighbours = ADJACENCIES[plan.adjacency]",
        '        neighbours = ADJACENCIES["add-or-remove"]',
        ("privacy/test_statement.py",),
    ),
    Bug(
        "a private selection costs what one run costs",
        "privacy/statement.py",
        "return self.plan.epsilon() if self.selection is None else self.selection.epsilon()",
        "return self.plan.epsilon()",
        ("privacy/test_statement.py",),
    ),
    Bug(
        "delta by rule is 1/N",
        "privacy/plan.py",
        'return float(f"1e-{max(5, len(str(examples - 1)) + 1)}")',
        "return 1 / examples",
        ("privacy/test_plan.py",),
    ),
    Bug(
        "a line of the list of runs that cannot be read is passed over",
        "runs/uses.py",
        "        if not line or _torn(line):",
        '        if not line or _torn(line) or b"Laplace" in line:',
        ("runs/test_uses.py",),
    ),
    Bug(
        "verify does not look at the model",
        "runs/verdict.py",
        'for key, name in (("statement", names.STATEMENT), ("model", names.MODEL)):',
        'for key, name in (("statement", names.STATEMENT),):',
        ("runs/test_verdict.py",),
    ),
    Bug(
        "verify does not count the steps",
        "runs/verdict.py",
        "    _require(len(releases) <= plan.steps, ",
        "    _require(True, ",
        ("runs/test_verdict.py",),
    ),
    Bug(
        "a JSON name may stand twice",
        "_checks.py",
        "        if name in found:",
        "        if False:",
        ("runs/test_verdict.py",),
    ),
    Bug(
        "selections together are each told the whole delta",
        "runs/uses.py",
        "    share = delta / (len(selections) + bool(runs))",
        "    share = delta",
        ("runs/test_uses.py",),
    ),
    Bug(
        "the delta of all runs is the smallest of theirs",
        "runs/uses.py",
        "    delta = max(plan.delta for plan in",
        "    delta = min(plan.delta for plan in",
        ("runs/test_uses.py",),
    ),
    Bug(
        "a line that is lost from the list of runs is not missed",
        "runs/uses.py",
        "            if entry.get(AFTER, _code(before)) != _code(before):",
        "            if False:",
        ("runs/test_uses.py",),
    ),
    Bug(
        "lines of the list of runs are bound to none before",
        "runs/uses.py",
        "AFTER: _code(before)}",
        'AFTER: _code(b"")}',
        ("runs/test_uses.py",),
    ),
    Bug(
        "two runs that begin at once break the list",
        "runs/uses.py",
        "            held_alone(file.fileno())\n",
        "",
        ("runs/test_uses.py",),
    ),
    Bug(
        "a run may stand in the list with two plans",
        "runs/uses.py",
        '            if all_runs.setdefault(entry["run"], use) != use:',
        "            if False:",
        ("runs/test_uses.py",),
    ),
    Bug(
        "verify accepts a run that ended before its first step",
        "runs/verdict.py",
        "_require(0 <= taken <= len(releases), ",
        "_require(taken <= len(releases), ",
        ("runs/test_verdict.py",),
    ),
    Bug(
        "verify accepts releases of another plan",
        "runs/verdict.py",
        'expected = {"step": step, "plan": plan.fingerprint}',
        'expected = {"step": step, "plan": entry.body.get("plan")}',
        ("runs/test_verdict.py",),
    ),
    Bug(
        "a plan may have any number of steps",
        "privacy/plan.py",
        "        if self.steps > MAX_STEPS:",
        "        if False:",
        ("privacy/test_plan.py::test_a_damaged_plan_is_refused",),
    ),
    Bug(
        "a plan is believed beyond what the accountants resolve",
        "privacy/plan.py",
        "        self.theorem.check(self)\n",
        "        _ = self.theorem\n",
        ("privacy/test_plan.py::test_a_damaged_plan_is_refused",),
    ),
    Bug(
        "a line of the list of runs may have both a plan and a selection",
        "runs/uses.py",
        '    if "selection" in entry and "plan" in entry:',
        "    if False:",
        ("runs/test_uses.py",),
    ),
    Bug(
        "JSON that is nested too deeply ends in a traceback",
        "_checks.py",
        "    except RecursionError:",
        "    except ZeroDivisionError:",
        ("models/test_about.py",),
    ),
    # -- randomness
    Bug(
        "q comes from the real number of records",
        "randomness/sampler.py",
        "coins < plan.sampling_probability",
        "coins < plan.expected_batch_size / max(1, records)",
        ("randomness/test_sampler.py", "randomness"),
    ),
    Bug(
        "participants repeat after 1,000 steps",
        "randomness/sampler.py",
        'coins = key.generator("sampling", step)',
        'coins = key.generator("sampling", step % 1000)',
        ("randomness",),
    ),
    Bug(
        "noise repeats after 1,000 steps",
        "randomness/noise/blocks.py",
        "else stream, step, name)",
        "else stream, step % 1000, name)",
        ("randomness",),
    ),
    Bug(
        "all parameters get the same noise",
        "randomness/noise/blocks.py",
        "else stream, step, name)",
        'else stream, step, "")',
        ("randomness",),
    ),
    Bug(
        "the noise forgets the sensitivity",
        "randomness/noise/__init__.py",
        "return self.mechanism.noise_multiplier * self.sensitivity",
        "return self.mechanism.noise_multiplier",
        ("randomness",),
    ),
    Bug(
        "draws depend on 32 bits of the key",
        "randomness/keys.py",
        "return hmac.new(self._secret, message",
        "return hmac.new(self._secret[:4], message",
        ("randomness",),
    ),
    Bug(
        "a seed forgets what it is for",
        "randomness/keys.py",
        'f"sfumato seed {seed} {context}"',
        'f"sfumato seed {seed}"',
        ("randomness", "training/test_run.py"),
    ),
    Bug(
        "a score has no noise",
        "randomness/search.py",
        "return round(right + noise * float(",
        "return round(right + 0 * float(",
        ("randomness",),
    ),
    Bug(
        "the check value is the key",
        "randomness/keys.py",
        'return self._derive("check", 0, run)[:32].hex()',
        "return self._secret[:32].hex()",
        ("randomness/test_keys.py",),
    ),
    Bug(
        "the ledger holds the key",
        "training/resume.py",
        '{"key_check": job.key.check_value(identity)}',
        '{"key_check": job.key._secret.hex()}',
        ("training/test_crash.py::test_no_file_of_a_run_but_its_key_holds_the_key",),
    ),
    Bug(
        "all runs under one key have one check value",
        "randomness/keys.py",
        'self._derive("check", 0, run)',
        'self._derive("check", 0, "")',
        ("randomness/test_keys.py",),
    ),
    Bug(
        "q is a hundredth too large",
        "randomness/sampler.py",
        "coins < plan.sampling_probability",
        "coins < plan.sampling_probability * 1.01",
        ("randomness/test_sampler.py",),
    ),
    Bug(
        "the noise is drawn in float32",
        "randomness/noise/blocks.py",
        ".standard_normal(size)",
        '.standard_normal(size, dtype="f4").astype("f8")',
        ("randomness/test_noise.py",),
    ),
    Bug(
        "a search goes on by another key",
        "search/selection.py",
        "        if key.check_value(_CHECK) != check:",
        "        if False:",
        ("cli/test_sweep.py::test_a_selection_goes_on_with_its_own_key_alone",),
    ),
    # -- the step and the loop
    Bug(
        "the sum is divided by the size that the batch happens to have",
        "training/step.py",
        "        divisor = self.plan.expected_batch_size * self.plan.max_norm\n",
        "        divisor = max(1, self.seen) * self.plan.max_norm\n",
        ("training/test_step.py",),
    ),
    Bug(
        "an empty batch is no step",
        "training/steps.py",
        "        participants = self._sampler.draw(step)\n",
        "        if not len(participants := self._sampler.draw(step)):\n"
        "            return self._step.gradient.zeros(), NoiseState(step=step + 1)\n",
        ("training/test_run.py", "training/test_step.py", "training/test_loop.py"),
    ),
    Bug(
        "steps of one shape are as long as what was drawn",
        "training/inputs.py",
        "-(-padded // size) * size - present",
        "0",
        ("training/test_padding.py",),
    ),
    Bug(
        "padding is made of records, and counts",
        "training/inputs.py",
        "yield torch.where(kept, inputs, 0), torch.where(weights, targets, 0), keys, weights",
        "yield inputs, targets, keys, torch.ones_like(weights)",
        ("training/test_padding.py",),
    ),
    Bug(
        "padding holds records",
        "training/inputs.py",
        "torch.where(kept, inputs, 0)",
        "inputs",
        ("training/test_padding.py",),
    ),
    Bug(
        "a release is recorded after it was computed",
        "training/loop.py",
        "            if ledger is not None and step >= paid:\n",
        "            if ledger is not None and step >= job.steps:\n",
        ("training/test_crash.py", "training/test_loop.py"),
    ),
    Bug(
        "the ledger is not safe on disk before a checkpoint",
        "training/loop.py",
        "        ledger.sync()\n    return",
        "        pass\n    return",
        ("training/test_loop.py",),
    ),
    Bug(
        "a step beyond the plan's last is taken",
        "training/step.py",
        "if not 0 <= step < self.plan.steps:",
        "if not 0 <= step:",
        ("training/test_step.py",),
    ),
    Bug(
        "the sensitivity of the sum is not looked at",
        "training/step.py",
        "if self.noise.sensitivity != bound or self.noise.mechanism != self.plan.mechanism:",
        "if self.noise.mechanism != self.plan.mechanism:",
        ("training/test_step.py",),
    ),
    Bug(
        "a run begins without the self-check",
        "training/prepare.py",
        "        gradient.self_check(shape)\n",
        "        gradient.bytes_per_example(shape)\n",
        ("training/test_prepare.py",),
    ),
    Bug(
        "the key of another run is accepted",
        "training/resume.py",
        "    if found != recorded:",
        "    if False:",
        ("training/test_crash.py",),
    ),
    Bug(
        "the checkpoint of another run is accepted",
        "runs/checkpoint.py",
        "        if self.run != identity:",
        "        if False:",
        ("training/test_crash.py",),
    ),
    Bug(
        "the key stays when a run has ended",
        "runs/directory.py",
        "        for name in (DICE_KEY, CHECKPOINT):\n            (self / name).unlink(missing_ok=True)",
        "        for name in (CHECKPOINT,):\n            (self / name).unlink(missing_ok=True)",
        ("training/test_crash.py", "training/test_run.py"),
    ),
    Bug(
        "a run goes on with other data",
        "training/resume.py",
        '        ("data", "give the data that the run began with',
        '        ("model", "give the data that the run began with',
        ("training/test_crash.py",),
    ),
    Bug(
        "the winner's files tell when it was trained",
        "search/selection.py",
        "            os.utime(path)",
        "            pass",
        ("cli/test_sweep.py",),
    ),
    Bug(
        "micro-batches are added up in float32",
        "gradients/grid.py",
        "name: torch.zeros_like(value, dtype=torch.int64)",
        "name: torch.zeros_like(value, dtype=torch.int32)",
        ("training/test_step.py",),
    ),
    Bug(
        "a run that was being ended takes more steps",
        "training/run.py",
        "    resume.refuse_ended(run, ledger, job.plan)\n",
        "",
        ("training/test_crash.py::test_a_run_that_was_being_ended_early_takes_no_step_more",),
    ),
    Bug(
        "the ledger is not bound to the data",
        "training/resume.py",
        '"data_commitment": commitment(job.source.fingerprint),',
        '"data_commitment": commitment(""),',
        ("training/test_loop.py",),
    ),
    Bug(
        "the ledger is not bound to the settings",
        "training/resume.py",
        "commitment(json.dumps(decided, sort_keys=True)),",
        'commitment(""),',
        ("training/test_loop.py",),
    ),
    Bug(
        "the ledger is bound to the settings alone",
        "training/resume.py",
        "(job.settings.to_dict(), job.transform.to_dict(), dict(job.functions), job.source.features, job.candidate)",
        "(job.settings.to_dict(),)",
        ("training/test_loop.py",),
    ),
    Bug(
        "two ledgers show that their runs had the same data",
        "training/resume.py",
        "hmac.new(bytes.fromhex(identity), to.encode(), hashlib.sha256)",
        "hashlib.sha256(to.encode())",
        ("training/test_loop.py",),
    ),
    Bug(
        "a model is known by what it does in evaluation alone",
        "training/prepare.py",
        "pins.model_digest(module, source.shape, training=True)",
        "pins.model_digest(module, source.shape)",
        ("training/test_loop.py",),
    ),
    # -- sensitivity
    Bug(
        "a clipped gradient may be a little too long",
        "gradients/clipping.py",
        "bound = max_norm * (1 - 4 * torch.finfo(dtype).eps - grid.allowance(elements))",
        "bound = max_norm * (1 + 4 * torch.finfo(dtype).eps)",
        ("gradients/test_clipping.py", "gradients/test_adversaries.py", "gradients/test_clipped.py"),
    ),
    Bug(
        "an example that is not finite takes part",
        "gradients/clipping.py",
        "    taking_part = torch.isfinite(squares) & torch.isfinite(losses)\n",
        "    factors, taking_part = torch.nan_to_num(factors), torch.ones_like(squares, dtype=torch.bool)\n",
        ("gradients/test_clipping.py", "gradients/test_adversaries.py", "gradients/test_clipped.py"),
    ),
    Bug(
        "norms by Gram matrices are not certified",
        "gradients/sites/forms.py",
        "        bound = squares.sqrt() + self._rounding(self._reach)\n",
        "        bound = squares.sqrt()\n",
        ("gradients/test_certified.py",),
    ),
    Bug(
        "batch norm over the private batch is accepted",
        "gradients/isolation.py",
        "if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):",
        "if isinstance(module, nn.SyncBatchNorm) and (module.training or module.running_mean is None):",
        ("gradients/test_isolation.py",),
    ),
    Bug(
        "what a module keeps of an example goes unnoticed",
        "gradients/vectorised.py",
        "    with nothing_kept(model, loss, own, strict=path.conditional), conditions, warnings.catch_warnings():",
        "    with conditions, warnings.catch_warnings():",
        ("gradients/test_isolation.py",),
    ),
    Bug(
        "an example whose loss is not finite takes part on the slow path",
        "gradients/sequential.py",
        "            value.detach().reshape(1),\n",
        "            value.detach().reshape(1).nan_to_num(0, 0, 0),\n",
        ("gradients/test_sequential.py",),
    ),
    Bug(
        "padding takes part where it has a gradient",
        "gradients/clipping.py",
        "        taking_part &= weights | (squares == 0)\n",
        "        pass\n",
        ("gradients/test_padding.py",),
    ),
    Bug(
        "padding on the slow path takes part where it has a gradient",
        "gradients/sequential.py",
        "            weights=own_weight,\n",
        "",
        ("gradients/test_padding.py",),
    ),
    Bug(
        "padding is left out, which takes a time that tells of it",
        "gradients/vectorised.py",
        "torch.where(weights, losses, 0)",
        "losses",
        ("gradients/test_padding.py",),
    ),
    Bug(
        "a third use of one weight is left out",
        "gradients/sites/forms.py",
        "    for use in uses[1:]:",
        "    for use in uses[1:2]:",
        ("gradients/sites/test_forms.py",),
    ),
    # -- data
    Bug(
        "a split by counting",
        "data/validation.py",
        'in_test(owner_key, b"validation" + code[:LENGTH].tobytes(), share) for code in codes',
        "place % round(1 / share) == 0 for place in range(len(codes))",
        ("data",),
    ),
    Bug(
        "a fingerprint without the owner's key",
        "data/fingerprint.py",
        'code = hmac.new(owner_key, b"fingerprint", hashlib.sha256)',
        'code = hmac.new(bytes(32), b"fingerprint", hashlib.sha256)',
        ("data",),
    ),
    Bug(
        "weights that were trained on the private records are accepted",
        "training/prepare.py",
        "    refuse_trained_on(source, trained_on(source, settings))\n",
        "",
        ("training/test_public.py", "cli/test_features.py"),
    ),
    Bug(
        "a code knows two of three colours",
        "data/codes.py",
        "pixels[:, :, :1] if grey else pixels)",
        "pixels[:, :, :1] if grey else pixels[:, :, :2])",
        ("data/test_codes.py",),
    ),
    Bug(
        "a second public training forgets what the first has seen",
        "runs/public_records.py",
        "known = now if before is None else np.unique(np.concatenate([before, now]), axis=0)",
        "known = now",
        ("runs/test_public_records.py",),
    ),
    Bug(
        "a second public training lists nothing",
        "runs/public_records.py",
        "    if before is not None and len(known) == len(before):",
        "    if before is not None:",
        ("runs/test_public_records.py",),
    ),
    Bug(
        "records held out to score on are not looked at",
        "runs/public_records.py",
        "(source.train, source.test, source.held_out)",
        "(source.train, source.test)",
        ("runs/test_public_records.py",),
    ),
    Bug(
        "records are held out and forgotten",
        "data/validation.py",
        "        held_out=validation,\n",
        "",
        ("runs/test_public_records.py",),
    ),
    Bug(
        "a list of records of another shape is believed",
        "runs/public_records.py",
        "if codes.dtype != np.uint8 or codes.ndim != 2 or codes.shape[1] != CODE_BYTES:",
        "if codes.dtype != np.uint8:",
        ("runs/test_public_records.py",),
    ),
    Bug(
        "the public page shows private figures",
        "report/document.py",
        "withheld = public and not facts.public_test",
        "withheld = False",
        ("report",),
    ),
    Bug(
        "a file's word is imported",
        "models/custom.py",
        "    if not is_own(spelling) or spelling == named:",
        "    if True:",
        ("cli/test_trusted_code.py",),
    ),
    Bug(
        "what a model file says of itself is believed",
        "models/about.py",
        "        if not right(about[name]) if name in about else name in REQUIRED:",
        "        if False:",
        ("models/test_about.py",),
    ),
    Bug(
        "a model file may leave out what it must say",
        "models/about.py",
        "if name in about else name in REQUIRED:",
        "if name in about else False:",
        ("models/test_about.py",),
    ),
    Bug(
        "a model file may ask for images of any size",
        "models/about.py",
        "and 1 <= value <= most",
        "and 1 <= value",
        ("models/test_about.py",),
    ),
    Bug(
        "the spelling of a model may be of any length",
        "models/about.py",
        "isinstance(value, str) and len(value) <= LONGEST_SPELLING",
        "isinstance(value, str)",
        ("models/test_about.py",),
    ),
    Bug(
        "a transform without deviations is believed",
        "models/about.py",
        '_numbers(value["mean"]) and _numbers(value.get("std"))',
        '_numbers(value["mean"])',
        ("models/test_about.py",),
    ),
    Bug(
        "origins of any type are believed",
        "models/about.py",
        ' and "epsilon" in value and _texts(facts.get("origins", []))',
        ' and "epsilon" in value',
        ("models/test_about.py",),
    ),
    Bug(
        "a backbone of a library is refused as code of one's own",
        "runs/loaded.py",
        ' and not known["name"].startswith(models.TORCHVISION)',
        "",
        ("models/test_about.py",),
    ),
    Bug(
        "a spelling that no parser takes ends in a traceback",
        "models/name.py",
        "(ValueError, SyntaxError, MemoryError, RecursionError)",
        "(ValueError, SyntaxError)",
        ("models/test_name.py",),
    ),
    Bug(
        "settings hold what a model does in evaluation alone",
        "training/job.py",
        '"model": dict(self.functions),',
        '"model": {"function": self.functions["function"]},',
        ("training/test_loop.py",),
    ),
    Bug(
        "clip factors leave nothing for the rounding to the grid",
        "gradients/clipping.py",
        " - grid.allowance(elements))",
        ")",
        ("gradients/test_grid.py",),
    ),
    Bug(
        "a grid of fewer bits",
        "gradients/grid.py",
        "STEP = 2.0**-38",
        "STEP = 2.0**-20",
        ("gradients/test_grid.py", "training/test_step.py"),
    ),
    Bug(
        "all blocks of a parameter get the same noise",
        "randomness/noise/blocks.py",
        'f"{stream} {block}" if block else stream',
        "stream",
        ("randomness/test_noise.py",),
    ),
    Bug(
        "every piece of a block gets the same noise",
        "randomness/noise/blocks.py",
        "                if stream not in generators:",
        "                if True:",
        ("randomness/test_correlated.py", "randomness/test_noise.py"),
    ),
    Bug(
        "a buffer's scale is off by a twentieth",
        "randomness/noise/blt.py",
        "noise -= scale * buffer",
        "noise -= 0.95 * scale * buffer",
        ("randomness/test_correlated.py",),
    ),
    Bug(
        "all scales go with one buffer",
        "randomness/noise/blt.py",
        "zip(self._scales, kept, strict=True)",
        "zip(self._scales, kept[[0] * len(kept)], strict=True)",
        ("randomness/test_correlated.py",),
    ),
    Bug(
        "a buffer decays one step too often",
        "randomness/noise/blt.py",
        "            buffer *= decay\n            buffer += noise\n",
        "            buffer += noise\n            buffer *= decay\n",
        ("randomness/test_correlated.py",),
    ),
    Bug(
        "bands are off by one",
        "randomness/noise/banded_toeplitz.py",
        "self._coefficients[step - earlier]",
        "self._coefficients[step - earlier - 1]",
        ("randomness/test_correlated.py",),
    ),
    Bug(
        "the last band is left out",
        "randomness/noise/banded_toeplitz.py",
        "distance <= self._count, self",
        "distance < self._count, self",
        ("randomness/test_correlated.py",),
    ),
    Bug(
        "the first bands come again after the last",
        "randomness/noise/banded_toeplitz.py",
        "distance <= self._count, self._coefficients[np.minimum(distance, self._count)]",
        "distance > 0, self._coefficients[(distance - 1) % self._count + 1]",
        ("randomness/test_correlated.py",),
    ),
    Bug(
        "a tree's nodes are weighted as leaves",
        "randomness/noise/tree.py",
        "        change -= kept[level] / _variance(level)",
        "        change -= kept[level]",
        ("randomness/test_tree.py",),
    ),
    Bug(
        "merged nodes have too little noise of their own",
        "randomness/noise/tree.py",
        "    node *= math.sqrt(_variance(height) - known)",
        "    node *= 1.0",
        ("randomness/test_tree.py",),
    ),
    Bug(
        "a tree never ends",
        "randomness/noise/tree.py",
        "position = step % self._leaves if self._leaves else step",
        "position = step",
        ("randomness/test_tree.py",),
    ),
    Bug(
        "a tree's completion has the next leaf's noise",
        "randomness/noise/tree.py",
        'fresh("completion")',
        'fresh("noise")',
        ("randomness/test_tree.py",),
    ),
    Bug(
        "a tree is not completed",
        "randomness/noise/tree.py",
        "            noise += self._completion",
        "            self._completion",
        ("randomness/test_tree.py",),
    ),
    Bug(
        "a state serves twice",
        "randomness/noise/__init__.py",
        "        state.tensors.clear()\n",
        "",
        ("randomness/test_correlated.py",),
    ),
    Bug(
        "steps that hang together go without what they remember",
        "randomness/noise/__init__.py",
        "for name, value in state.tensors.items()} != expected",
        "for name, value in state.tensors.items()} == {}",
        ("randomness/test_correlated.py",),
    ),
    Bug(
        "two participations are a step too near (minsep for gap)",
        "randomness/sampler.py",
        "return lambda step: members(step % bins)",
        "return lambda step: members(step % max(1, bins - 1))",
        ("randomness/test_participations.py",),
    ),
    Bug(
        "bins are of equal size",
        "randomness/sampler.py",
        'key.generator("bins", 0).integers(bins, size=records)',
        'key.generator("bins", 0).permutation(records) % bins',
        ("randomness/test_participations.py",),
    ),
    Bug(
        "groups go by position",
        "randomness/sampler.py",
        'key.generator("groups", 0).integers(rule.groups, size=records)',
        "np.arange(records) % rule.groups",
        ("randomness/test_participations.py",),
    ),
    Bug(
        "groups are drawn in every step",
        "randomness/sampler.py",
        "        group = members(step % rule.groups)",
        '        group = _members(key.generator("groups", step).integers(rule.groups, size=records))(0)',
        ("randomness/test_participations.py",),
    ),
    Bug(
        "a turn is drawn with the probability of all steps",
        "randomness/sampler.py",
        ".random(len(group)) < probability]",
        ".random(len(group)) < plan.sampling_probability]",
        ("randomness/test_participations.py",),
    ),
    Bug(
        "a cut leaves the first",
        "randomness/sampler.py",
        "np.sort(generator.choice(drawn, rule.largest, replace=False, shuffle=False))",
        "drawn[: rule.largest]",
        ("randomness/test_participations.py",),
    ),
    Bug(
        "all cuts are one",
        "randomness/sampler.py",
        'key.generator("truncation", step)',
        'key.generator("truncation", 0)',
        ("randomness/test_participations.py",),
    ),
    Bug(
        "steps are counted from the first record's time stamp",
        "data/clock.py",
        "            places = (times - start) // period",
        "            places = (times - times.min()) // period",
        ("data/test_clock.py",),
    ),
    Bug(
        "records from before the start take part in the first step",
        "data/clock.py",
        "np.clip(places, -1, _FARTHEST)",
        "np.clip(places, 0, _FARTHEST)",
        ("data/test_clock.py", "training/test_times.py"),
    ),
    Bug(
        "a split leaves time stamps behind",
        "data/arrays.py",
        "None if times is None else times[~test]",
        "None if times is None else times[: int((~test).sum())]",
        ("data/test_clock.py",),
    ),
    Bug(
        "what is held out leaves time stamps behind",
        "data/records.py",
        "            times=times,\n",
        "            times=None if self.times is None else self.times[: which.sum()],\n",
        ("data/test_clock.py",),
    ),
    Bug(
        "files that are held out leave time stamps behind",
        "data/file_records.py",
        "times=None if self.times is None else self.times[which]",
        "times=None if self.times is None else self.times[: which.sum()]",
        ("data/test_clock.py",),
    ),
    Bug(
        "the fingerprint leaves time stamps out",
        "data/fingerprint.py",
        'told | ({"times": times} if times else {})',
        "told",
        ("data/test_clock.py",),
    ),
    Bug(
        "a run goes on by another clock",
        "training/resume.py",
        '    pins.compare("clock", clock, present["clock"], remedy=again, where=str(run.path))\n',
        "",
        ("training/test_times.py",),
    ),
    Bug(
        "the ledger is not bound to the clock",
        "training/resume.py",
        "() if job.clock is None else (job.clock.to_dict(),)",
        "()",
        ("training/test_times.py", "training/test_loop.py"),
    ),
    Bug(
        "clocks share a key under one seed",
        "training/prepare.py",
        "*([] if clock is None else [clock.to_dict()])",
        "*[]",
        ("training/test_times.py",),
    ),
    Bug(
        "steps by time are forgotten where a run goes on",
        "training/recorded.py",
        'Clock(**record["clock"]) if record.get("clock") else None',
        "None",
        ("training/test_times.py",),
    ),
    Bug(
        "by time a record takes part again",
        "randomness/sampler.py",
        "            return _members(_checked(times, records))\n",
        "            return lambda step: _members(_checked(times, records))(step % bins)\n",
        ("randomness/test_participations.py",),
    ),
    Bug(
        "noise is given for any step, whatever its state",
        "randomness/noise/__init__.py",
        "        if state.step != step:",
        "        if False:",
        ("randomness/test_noise.py",),
    ),
    Bug(
        "composition forgets the second plan's steps",
        "privacy/theorems/poisson_gaussian.py",
        "replace(self, steps=self.steps + other.steps)",
        "self",
        ("privacy/test_theorems.py", "runs/test_uses.py"),
    ),
    Bug(
        "losses of another adjacency compose",
        "privacy/loss.py",
        "            if (other.unit, other.adjacency) != (self.unit, self.adjacency):",
        "            if False:",
        ("privacy/test_theorems.py",),
    ),
    Bug(
        "a step takes a gradient of another sensitivity than its theorem's",
        "training/step.py",
        "        if bound != wanted * self.plan.max_norm:",
        "        if False:",
        ("training/test_step.py",),
    ),
    Bug(
        "a step's sum lies on the grid of another clipping norm",
        "training/step.py",
        "max_norm=self.plan.max_norm)\n        for",
        "max_norm=1.0)\n        for",
        ("training/test_step.py::test_sums_lie_on_the_grid_of_the_plan_s_clipping_norm",),
    ),
    Bug(
        "batches are larger than a sum holds",
        "training/step.py",
        "        if size > MOST_EXAMPLES:",
        "        if False:",
        ("training/test_step.py::test_larger_batches_than_a_sum_holds_are_refused",),
    ),
    Bug(
        "a part of a sum is repeated along an axis",
        "gradients/grid.py",
        "            if part[name].shape != total.shape:",
        "            if False:",
        ("gradients/test_grid.py",),
    ),
    Bug(
        "clip factors leave room for rounding one parameter",
        "gradients/sums.py",
        "dtype=coarsest, elements=elements, weights=weights",
        "dtype=coarsest, elements=1, weights=weights",
        ("gradients/test_clipped.py::test_the_longest_term_leaves_room_for_rounding_all_parameters_to_the_grid",),
    ),
    Bug(
        "clip factors leave room for rounding one parameter on the slow path",
        "gradients/sequential.py",
        "            elements=elements,\n",
        "            elements=1,\n",
        ("gradients/test_clipped.py::test_the_longest_term_leaves_room_for_rounding_all_parameters_to_the_grid",),
    ),
    Bug(
        "blocks of a parameter after its first have noise of deviation 1",
        "randomness/noise/blocks.py",
        "np.multiply(noise, standard_deviation, out=piece)",
        "np.multiply(noise, 1.0 if block else standard_deviation, out=piece)",
        ("randomness/test_noise.py",),
    ),
    Bug(
        "full batches end at the declared N",
        "randomness/sampler.py",
        "    return lambda step: np.arange(records)",
        "    return lambda step: np.arange(min(records, plan.population))",
        ("randomness/test_sampler.py",),
    ),
    Bug(
        "a step does not pass on the noise's state",
        "training/step.py",
        "self.noise.add(total.value(), step, state)",
        "self.noise.add(total.value(), step, NoiseState(step=step))",
        ("training/test_step.py::test_the_noise_gets_the_state_that_the_step_is_given",),
    ),
    Bug(
        "a checkpoint forgets what the noise remembers",
        "runs/checkpoint.py",
        '        tensors |= {f"noise.{name}": value for name, value in self.noise.tensors.items()}\n',
        "",
        ("runs/test_checkpoint.py",),
    ),
    Bug(
        "a checkpoint takes the noise for that of its own step",
        "runs/checkpoint.py",
        'NoiseState(step=about["noise"],',
        'NoiseState(step=about["step"],',
        ("runs/test_checkpoint.py",),
    ),
    Bug(
        "a run keeps nothing of the noise's state",
        "training/loop.py",
        "noise=state, ledger=head",
        "ledger=head",
        ("training/test_loop.py",),
    ),
    Bug(
        "a run that goes on begins the noise anew",
        "training/loop.py",
        "module, state, outputs = job.module, checkpoint.noise, None",
        "module, state, outputs = job.module, NoiseState(step=checkpoint.step), None",
        ("training/test_loop.py",),
    ),
    Bug(
        "a run goes on after the releases of another plan",
        "training/resume.py",
        '(entry.kind, entry.body) != ("release", {"step": step, "plan": job.plan.fingerprint})',
        'entry.body["step"] != step',
        ("training/test_loop.py",),
    ),
    Bug(
        "a run goes on after more releases than its plan has",
        "training/resume.py",
        " or step >= job.steps:",
        ":",
        ("training/test_loop.py",),
    ),
    Bug(
        "a run is ended under other circumstances",
        "training/run.py",
        "        resume.compare(job, run, going_on=False)\n        checkpoint",
        "        checkpoint",
        ("training/test_loop.py",),
    ),
    Bug(
        "data that changed at their place are others",
        "runs/uses.py",
        'if known or (place is not None and entry.get("place") == place):',
        "if known:",
        ("runs/test_uses.py",),
    ),
    Bug(
        "runs from Python have no place",
        "training/run.py",
        ' {"source": spec.record()}',
        " {}",
        ("training/test_run.py::test_data_that_changed_where_they_lie_are_known_again_from_python",),
    ),
    Bug(
        "many plans together are each told the whole delta",
        "runs/uses.py",
        "    share = delta / len(loss.parts)",
        "    share = delta",
        ("runs/test_uses.py",),
    ),
    Bug(
        "the largest number of steps is one that nobody computed",
        "privacy/calibration.py",
        "    return low\n\n\ndef _secant",
        "    return max(low, high - 1) if low else 0\n\n\ndef _secant",
        ("privacy/test_plan.py::test_many_steps_are_those_whose_epsilon_was_computed",),
    ),
    Bug(
        "the noise is told in units of C and not of the sensitivity",
        "privacy/theorems/theorem.py",
        "return sigma / self.sensitivity",
        "return sigma",
        ("privacy/test_theorems.py::test_a_theorem_of_twice_the_sensitivity_needs_twice_the_noise",),
    ),
    Bug(
        "plans of another sampling probability compose as one",
        "privacy/theorems/poisson_gaussian.py",
        "replace(other, steps=self.steps) == self:",
        "other.sigma == self.sigma:",
        ("privacy/test_theorems.py::test_plans_of_another_probability_or_noise_stay_apart",),
    ),
    Bug(
        "the delta that was asked for is not heard",
        "training/experiment.py",
        "delta=default_delta(source.examples) if self.delta is None else self.delta,",
        "delta=default_delta(source.examples),",
        ("training/test_experiment.py",),
    ),
    Bug(
        "the clipping norm that was asked for is not heard",
        "training/experiment.py",
        "max_norm=1.0 if self.max_norm is None else self.max_norm,",
        "max_norm=1.0,",
        ("training/test_experiment.py",),
    ),
    Bug(
        "beside noise and steps the budget is not heard",
        "training/experiment.py",
        "epsilon=None if bounded else epsilon,",
        "epsilon=None if bounded or (noise is not None and steps) else epsilon,",
        ("training/test_experiment.py",),
    ),
    Bug(
        "a plan may come to a hundredth more than was asked for",
        "training/experiment.py",
        'if plan.epsilon() > positive("epsilon", epsilon):',
        'if plan.epsilon() > 1.01 * positive("epsilon", epsilon):',
        ("training/test_experiment.py",),
    ),
    # -- virtual clients
    Bug(
        "clients are filled with the drawn users in their order",
        "embedding/rounds.py",
        "assigned = self.assign(step)[drawn]",
        "assigned = np.arange(len(drawn)) // 2",
        ("embedding/test_rounds.py",),
    ),
    Bug(
        "a group's client depends on which other groups there are",
        "embedding/clients.py",
        "clients)) for name in names]",
        "clients)) for name in range(len(names))]",
        ("embedding/test_clients.py",),
    ),
    Bug(
        "groups that are fixed for the run move",
        "embedding/clients.py",
        '("client of a group", 0) if fixed else',
        '("client of a group", step) if fixed else',
        ("embedding/test_clients.py",),
    ),
    Bug(
        "a client's generator depends on which other clients there are",
        "embedding/rounds.py",
        'self.key.generator("client", step, str(client))',
        'self.key.generator("client", step, str(list(self.clients(step, drawn)).index(client)))',
        ("embedding/test_rounds.py",),
    ),
    Bug(
        "a user's last record goes to the next user",
        "embedding/rounds.py",
        "return self._order[start:end]",
        "return self._order[max(0, start - 1) : end - 1]",
        ("embedding/test_rounds.py",),
    ),
    Bug(
        "the local head is handed on with the update",
        "embedding/local.py",
        "return {name: value - end[name] for name, value in self.start().items()}",
        'return {name: value - end[name] for name, value in self.start().items()} | {"head": end["head"]}',
        ("embedding/test_local.py::test_an_update_is_start_less_end_of_the_backbone_alone",),
    ),
    Bug(
        "labels are numbers of slots",
        "embedding/local.py",
        "        classes, targets = labels.unique(return_inverse=True)",
        "        classes, targets = torch.arange(int(labels.max()) + 1), labels",
        ("embedding/test_local.py",),
    ),
    Bug(
        "a client goes on from the one before",
        "embedding/local.py",
        "        own = copy.deepcopy(self.module)",
        '        own = self.__dict__.setdefault("own", copy.deepcopy(self.module))',
        ("embedding/test_local.py",),
    ),
    Bug(
        "the model's own draws go on from the client before",
        "embedding/local.py",
        "            torch.manual_seed(int(generator.integers(1 << 63)))",
        "            generator.integers(1 << 63), torch.rand(1, generator=torch.default_generator)",
        ("embedding/test_local.py",),
    ),
    Bug(
        "frozen parameters are summed",
        "embedding/local.py",
        "for name, value in module.named_parameters() if value.requires_grad}",
        "for name, value in module.named_parameters()}",
        ("embedding/test_local.py",),
    ),
    Bug(
        "the epochs go on beyond the cap",
        "embedding/order.py",
        "stream = np.concatenate([*seen, np.empty(0, np.int64)])[:wanted]\n",
        "stream = np.concatenate([*seen, np.empty(0, np.int64)])\n    wanted = len(stream)\n",
        ("embedding/test_order.py",),
    ),
    Bug(
        "one user is said to move the clients' sum by C",
        "embedding/query.py",
        "return 2 * self.max_norm",
        "return self.max_norm",
        ("embedding/test_query.py", "embedding/test_rounds.py"),
    ),
    Bug(
        "an update that is not finite is kept",
        "embedding/query.py",
        "{name: weighted_sum(value[None], factors) for name",
        "{name: value * factors.to(value) for name",
        ("embedding/test_query.py",),
    ),
    Bug(
        "a client's update has no room for the grid's rounding",
        "embedding/query.py",
        "elements=sum(value.numel() for value in update.values()),",
        "elements=0,",
        ("embedding/test_query.py",),
    ),
    Bug(
        "each parameter of an update is clipped by itself",
        "embedding/query.py",
        "        squares = sum(squared_norms(value[None]) for value in update.values())",
        "        squares = max((squared_norms(value[None]) for value in update.values()), key=float)",
        ("embedding/test_query.py",),
    ),
    Bug(
        "an empty client counts as one whose update is short",
        "embedding/query.py",
        "gradients=self.zeros(), within=0.0",
        "gradients=self.zeros(), within=0.5",
        ("embedding/test_query.py",),
    ),
)


def main(names: list[str]) -> int:
    chosen = [bug for bug in BUGS if not names or bug.name in names]
    found = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    for bug in chosen:
        found[bug.name] = caught_by(bug)
        print(f"{bug.name:<70} {found[bug.name]}", flush=True)
    RESULT.write_text(json.dumps({bug.name: found[bug.name] for bug in BUGS if bug.name in found}, indent=1) + "\n")
    return sum(found[bug.name] == "survived" for bug in chosen)


def caught_by(bug: Bug) -> str:
    """The first test that fails, or "survived"."""
    with tempfile.TemporaryDirectory() as folder:
        copied = Path(folder) / "src"
        shutil.copytree(ROOT / "src", copied, ignore=shutil.ignore_patterns("__pycache__"))
        file = copied / "sfumato" / bug.file
        text = file.read_text("utf-8")
        if text.count(bug.right) != 1:
            raise SystemExit(f"error: {bug.name!r}: its text stands {text.count(bug.right)} times in {bug.file}")
        file.write_text(prepared(bug, text), "utf-8")
        tests = [f"tests/{name}" for name in bug.tests]
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", *tests]
        environment = os.environ | {"PYTHONPATH": str(copied), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    if failed is None and done.returncode:
        raise SystemExit(f"error: {bug.name!r}: no test ran:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return "survived" if failed is None else failed[1].removeprefix("tests/")


def prepared(bug: Bug, text: str) -> str:
    """The file with the bug in it."""
    wrong = text.replace(bug.right, bug.wrong)
    if "self.seen" in bug.wrong:  # the step must count what it is given before it can divide by it
        wrong = wrong.replace(
            "            total.add(self.gradient(*micro_batch).gradients)\n",
            '            object.__setattr__(self, "seen", getattr(self, "seen", 0) + len(micro_batch[1]))\n'
            "            total.add(self.gradient(*micro_batch).gradients)\n",
        ).replace(bug.wrong, bug.wrong.replace("self.seen", 'getattr(self, "seen", 0)'))
    if '{"head": end["head"]}' in bug.wrong:  # the head must be the module's to be handed on
        wrong = wrong.replace(
            "        later = [", "        own.head = nn.Parameter(head.detach())\n        later = [", 1
        )
    return wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
