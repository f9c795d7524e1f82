"""Refusals on one line, in the spelling of the command line, with the option that was probably meant."""

from __future__ import annotations

import dataclasses
import re

OPTIONS = {"directory": "output"}
"""What an argument of the library is called on the command line, where that is another name."""
ELSEWHERE = {
    "bs": "batch_size",
    "b": "batch_size",
    "batch": "batch_size",
    "epochs": "steps",
    "iterations": "steps",
    "clip": "max_norm",
    "clipping_norm": "max_norm",
    "max_grad_norm": "max_norm",
    "noise": "noise_multiplier",
    "e": "epsilon",
    "target_epsilon": "epsilon",
    "target_delta": "delta",
    "o": "output",
    "out": "output",
    "gpu": "device",
    "cuda": "device",
    "arch": "model",
    "network": "model",
}
"""What options are called elsewhere, besides the fields of an experiment."""
HERE = {
    "gpus": ("device", "--device cuda computes on a GPU, and --processes N on as many of them"),
    "amp": ("precision", "it is --precision bfloat16, in which norms, sums and noise stay as precise"),
    "class_weights": ("class_prevalence", "it is --class-prevalence: declared shares, since counted ones are private"),
    "config": ("what", "a configuration is a recipe: name the .toml file, or recipe:NAME, in place of the source"),
    "early_stopping": (
        "steps",
        "there is none: the plan fixes --steps, and to stop by a score on private data would tell of these; "
        "sfumato finish ends a run at its last checkpoint, at the whole plan's epsilon",
    ),
    "lora": (
        "trainable",
        "--trainable says which weights are trained; adapters such as peft's go into a module of your own, from Python",
    ),
    "resume": ("what", "name the run directory in place of the source"),
}
"""What other tools have: the option that it is here, of a verb that has it, and what to do."""
ALIASES = {
    "fp16": "amp",
    "bf16": "amp",
    "mixed_precision": "amp",
    "autocast": "amp",
    "n_gpus": "gpus",
    "num_gpus": "gpus",
    "class_weight": "class_weights",
    "cfg": "config",
    "config_file": "config",
    "patience": "early_stopping",
    "lora_rank": "lora",
    "peft": "lora",
    "adapter": "lora",
    "resume_from": "resume",
    "resume_from_checkpoint": "resume",
}
"""Further spellings of these."""


def with_the_option_meant(problem: str, verb: type) -> str:
    """What went wrong, with the option that was probably meant where it is known by another name elsewhere.

    >>> from sfumato.cli.verbs.train import Train
    >>> with_the_option_meant("Unrecognized options: --lr, 0.5", Train)
    'Unrecognized options: --lr, 0.5; perhaps you meant --learning-rate'
    >>> with_the_option_meant("Unrecognized options: --amp; perhaps you meant --examples", Train)
    'Unrecognized options: --amp; it is --precision bfloat16, in which norms, sums and noise stay as precise'
    """
    if unknown := re.match(r"Unrecognized options: --?([\w-]+)", problem):
        from sfumato._choices import nearest
        from sfumato.experiment.keywords import OF_OPTIMIZERS, THEIR_OWN

        known, name = {field.name for field in dataclasses.fields(verb)}, unknown[1].replace("-", "_")
        if name in OF_OPTIMIZERS and "optimizer" in known:
            own = THEIR_OWN.format("--momentum", "--weight-decay", "--learning-rate")
            return f"{problem.partition(';')[0]}; leave it out: {own}"
        of, meant = HERE.get(ALIASES.get(name, name), (None, ""))
        if of in known:
            return f"{problem.partition(';')[0]}; {meant}"
        if "perhaps" in problem:
            return problem
        near = ELSEWHERE.get(name) or nearest(name, known)
        if near in known:
            return f"{problem}; perhaps you meant --{near.replace('_', '-')}"
    return problem


def one_line(boxed: str) -> str:
    r"""The parser's boxed message as one line.

    >>> one_line(" Bad\n --- \n Error parsing --steps: no type matching {None}|INT\n could be instantiated from ['x'].")
    "--steps must be a whole number, got 'x'"
    >>> one_line("╭─ Bad ─╮\n│ Unrecognized options: --epsilo │\n│ ─── │\n│ Perhaps you meant: │\n│ --epsilon E │")
    'Unrecognized options: --epsilo; perhaps you meant --epsilon'
    >>> one_line("╭─ Missing ─╮\n│ Missing from sfumato features: --backbone NAME Timm:NAME, or a run. (required) │")
    '--backbone is missing: timm:NAME, or a run'
    """
    lines = [line.strip("│ \n") for line in boxed.splitlines() if not line.startswith(("╭", "╰"))]
    parts = " ".join("\0" if line.startswith(("──", "---")) else line for line in lines).split("\0")
    if "│" not in boxed:  # without box characters the title is a part of its own
        parts = parts[1:] or parts
    problem, *rest = [re.sub(r"\s+", " ", part).strip() for part in parts]
    problem = re.sub(r" Got errors:.*", "", problem).rstrip(".")
    unread = re.fullmatch(
        r"Error parsing (\S+): no type matching (?:\{None\}\|)?(.+) could be instantiated from \[(.*)\]", problem
    )
    if unread:
        option, kind, given = unread.groups()
        kinds = {"INT": "a whole number", "FLOAT": "a number"}
        kinds |= {"{[INT [INT ...]]}": "whole numbers", "{[FLOAT [FLOAT ...]]}": "numbers"}
        problem = f"{option} must be {kinds.get(kind, kind)}, got {given}"
    if refused := re.fullmatch(r"Error parsing (\S+): (must .+)", problem):
        problem = f"{refused[1]} {refused[2]}"
    if unread := re.fullmatch(r"Error parsing (\S+): (invalid literal for int|could not convert).*: (.+)", problem):
        problem = f"{unread[1]} must be a {'whole ' if 'int' in unread[2] else ''}number, got {unread[3]}"
    if chosen := re.fullmatch(r"invalid choice (.+) for argument '(\S+)'\. Expected one of \((.+)\)", problem):
        allowed = sorted({name.strip("' ") for name in chosen[3].split(",")} - {"None"}, reverse=True)
        problem = f"{chosen[2]} must be {' or '.join(allowed)}, got {chosen[1]}"
    # tyro 1.0 names it by a tuple: "argument '('--interval',)'".
    if valueless := re.fullmatch(
        r"Missing value for argument '(?:\(')?(\S+?)(?:',\))?'\. Expected \d+ values?", problem
    ):
        problem = f"{valueless[1]} needs a value"
    if missing := re.fullmatch(r"Missing from [^:]+: (\S+) (?:[A-Z]+ )?(.)(.+)\. \(required\)", problem):
        problem = f"{missing[1]} is missing: {missing[2].lower()}{missing[3]}"
    if not problem:
        return "the command cannot be understood"
    for part in rest:
        if meant := re.match(r"Perhaps you meant: (\S+)", part):
            return f"{problem}; perhaps you meant {meant[1]}"
    return problem


def in_options(message: str, verb: object) -> str:
    """A refusal of an argument, in the spelling of the command line.

    >>> from sfumato.cli.verbs.train import Train
    >>> verb = Train(what="digits")
    >>> in_options("batch_size must be at least 1, got 0; give the batch size", verb)
    '--batch-size must be at least 1, got 0; give the batch size'
    >>> in_options("the data are private; declare them (`public=True`), or give another `directory`", verb)
    'the data are private; declare them (--public), or give another --output'
    """
    if verb is None:
        return message
    flags = {field.name for field in dataclasses.fields(verb) if field.default is False}  # type: ignore[arg-type]

    def option(marked: re.Match[str]) -> str:
        name, value = marked.groups()
        spelt = f"--{OPTIONS.get(name, name).replace('_', '-')}"
        return spelt if value is None or name in flags else f"{spelt} {value}"

    message = re.sub(r"`(\w+)(?:=([^`]*))?`", option, message)
    name, must, rest = message.partition(" must ")
    if must and name in {field.name for field in dataclasses.fields(verb)}:  # type: ignore[arg-type]
        return f"--{name.replace('_', '-')}{must}{rest}"
    return message
