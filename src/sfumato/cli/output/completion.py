"""Shell completion of verbs, options, help topics, kinds of sources, values, recipes, runs and paths.

`sfumato --completion SHELL` prints a short script, which calls `sfumato --complete SHELL LINE` at each tab. To load it,
add a line to the configuration file of the shell, such as: eval "$(sfumato --completion bash)".
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from sfumato._checks import SfumatoError
from sfumato.cli.options import recipe
from sfumato.cli.options.spellings import UsageError
from sfumato.cli.output import help as pages
from sfumato.cli.registry import VERBS, load
from sfumato.runs.directory import SETTINGS

BASH = """\
_{program}() {{
    local IFS=$'\\n'
    COMPREPLY=($("$1" --complete bash "${{COMP_LINE:0:COMP_POINT}}" "$COMP_WORDBREAKS" 2>/dev/null))
    [[ ${{#COMPREPLY[@]}} != 1 || $COMPREPLY != *[/:=-] ]] || compopt -o nospace 2>/dev/null
}}
complete -F _{program} {program}
"""
ZSH = """\
#compdef {program}
_{program}() {{
    local -a closed open closed_words open_words
    local value words_of
    while IFS=$'\\t' read -r value words_of; do
        if [[ $value == *[/:=-] ]]; then
            open+=("$value"); open_words+=("$value${{words_of:+  $words_of}}")
        else
            closed+=("$value"); closed_words+=("$value${{words_of:+  $words_of}}")
        fi
    done < <($words[1] --complete zsh "${{(j: :)words[1,CURRENT-1]}} $PREFIX" 2>/dev/null)
    compadd -l -d closed_words -a closed
    compadd -l -S '' -d open_words -a open
}}
if [[ $funcstack[1] == _{program} ]]; then
    _{program} "$@"
else
    (( $+functions[compdef] )) || {{ autoload -Uz compinit && compinit }}
    compdef _{program} {program}
fi
"""
FISH = """\
complete -c {program} -f -a '({program} --complete fish (commandline -cp))'
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}
GLOBAL = ("--help", "--version", "--completion")
_OF_SOURCES = ("SOURCE", "PUBLIC", "PRIVATE")


class Candidate(NamedTuple):
    """A possible completion, and its purpose."""

    word: str
    purpose: str = ""


def script(shell: str, program: str) -> str:
    """The completion script of a shell.

    Errors: `UsageError` for an unsupported shell.
    """
    if shell not in SCRIPTS:
        known = ", ".join(SCRIPTS)
        raise UsageError(f"--completion must be one of {known}, got {shell!r}", "name one of these shells")
    return SCRIPTS[shell].format(program=program).rstrip("\n")


def complete(shell: str, line: str, breaks: str, program: str) -> Iterator[str]:
    """The completions of the last word of a command line, as lines for the shell.

    Args:
        breaks: for bash, the characters at which bash splits words. It expects the part after the last of them.
    """
    words = _words(line)
    begun = next((place for place, word in enumerate(words) if Path(word).name == program), 0)
    try:
        found = candidates(words[begun + 1 :])
    except (OSError, SfumatoError):
        found = []
    for one in found:
        if shell == "bash":
            apart = [place for place, letter in enumerate(words[-1]) if letter in breaks and letter in ":="]
            yield re.sub(r"([^\w@%+=:,./~-])", r"\\\1", one.word[apart[-1] + 1 if apart else 0 :])
        else:
            yield f"{one.word}\t{one.purpose}".rstrip("\t")


def candidates(words: Sequence[str]) -> list[Candidate]:
    """The completions of the last of these words. The first word is the verb."""
    *before, current = words or [""]
    if not before:
        first = [Candidate(verb, purpose) for verb, purpose in VERBS.items()]
        return _starting_with(current, first if not current.startswith("-") else map(Candidate, GLOBAL))
    if before[0] not in VERBS:
        return []
    page = pages.full_page(load(before[0]))
    options = {f"--{one.name.replace('_', '-')}": one for listed in page.options.values() for one in listed}
    name, equals, value = current.partition("=")
    if equals and name in options:
        return [Candidate(f"{name}={one.word}", one.purpose) for one in values(options[name], value)]
    if current.startswith("-"):
        return _starting_with(current, (Candidate(option, one.short.purpose) for option, one in options.items()))
    place = next((place for place in reversed(range(len(before))) if before[place].startswith("-")), None)
    if place is not None and before[place] in ("-h", "--help"):
        return _starting_with(current, map(Candidate, pages.topics(page)))
    given = None if place is None else options.get(before[place].partition("=")[0])
    taken = 0 if given is None or "=" in (before[place or 0]) else _takes(given)
    behind = len(before) - 1 - (place or 0)
    if given is not None and behind < taken:
        return values(given, current)
    found = [each for one in page.positional for kind in one.usage.split() for each in values(one, current, kind)]
    return list(dict.fromkeys(found))


def _takes(one: pages.OptionHelp) -> int:
    """The number of values that an option takes."""
    metavar = _metavar(one)
    return 99 if "..." in metavar and " " in metavar else int(bool(metavar))


def _metavar(one: pages.OptionHelp) -> str:
    return one.usage.partition(" ")[2] if one.usage.startswith("-") else one.usage


def values(one: pages.OptionHelp, current: str, metavar: str = "") -> list[Candidate]:
    """The possible values of an option or argument that begin with `current`."""
    kinds = [kind for kind in (metavar or _metavar(one).partition(" ")[0]).split("|") if kind[:1].isalpha()]
    found: list[str] = []
    if one.name == "source" or any(kind in _OF_SOURCES for kind in kinds):
        found += _sources(current)
    if "RECIPE" in kinds:
        found += ["recipe:", *(f"{recipe.SCHEME}{name}" for name in recipe.names() if ":" in current)]
        found += [path for path in _paths(current) if path.endswith(("/", ".toml"))]
    if "RUN" in kinds:
        found += [path for path in _paths(current) if path.endswith("/") or _is_run(path)]
    if any(kind in ("PATH", "DIR", "IMAGE", "TEXT") for kind in kinds):
        found += _paths(current)
    found += [kind for kind in kinds if kind == kind.lower() or kind in ("True", "False")]
    if kinds == ["NAME"]:
        found += _listed(one.purpose)
    if one.name == "pretrained":
        found.append("timm")
    return _starting_with(current, map(Candidate, dict.fromkeys(found)))


def _sources(current: str) -> list[str]:
    kind, colon, argument = current.partition(":")
    if kind == "torchvision" and colon:
        from sfumato.data.kinds import torchvision_names

        return [f"{kind}:{name}" for name in torchvision_names()]
    from sfumato.data.kinds import KINDS  # imports numpy

    if not colon:
        return [name if name == "digits" else f"{name}:" for name in KINDS]
    return [f"{kind}:{path}" for path in _paths(argument)] if kind in KINDS else []


def _paths(prefix: str) -> list[str]:
    """Paths that begin with `begun`. Folders end with a slash, except run directories, which are complete values."""
    folder, name = os.path.split(prefix)
    try:
        with os.scandir(os.path.expanduser(folder) or ".") as entries:
            listed = sorted(entry.name + "/" * entry.is_dir() for entry in entries if entry.name.startswith(name))
    except OSError:
        return []
    seen = [os.path.join(folder, each) for each in listed if name.startswith(".") or not each.startswith(".")]
    return [path.rstrip("/") if _is_run(path) else path for path in seen]


def _is_run(path: str) -> bool:
    return os.path.isfile(os.path.join(os.path.expanduser(path), SETTINGS))


def _listed(purpose: str) -> list[str]:
    """The names that an option's purpose lists at its beginning.

    >>> _listed("Of the rate: constant, cosine or step. More"), _listed("cnn, wrn-DEPTH-WIDTH, timm:NAME, or p:f; so")
    (['constant', 'cosine', 'step'], ['cnn', 'wrn-', 'timm:'])
    >>> _listed("The classes, declared.")
    []
    """
    sentence = re.split(r"[.;](?: |$)", re.sub(r"^[^:,.;]+: ", "", purpose))[0]
    parts = re.split(r", (?:or )?| or ", sentence)
    plain = [re.fullmatch(r"([a-z][\w.-]*?[:-]?)(?:[A-Z][A-Z-]*)?", part) for part in parts]
    leading = plain[: plain.index(None)] if None in plain else plain
    names = [match[1] for match in leading if match is not None]
    return names if len(names) > 1 else []


def _starting_with(current: str, found: Iterator[Candidate] | Sequence[Candidate]) -> list[Candidate]:
    return [one for one in found if one.word.startswith(current)]


def _words(line: str) -> list[str]:
    """The words of a command line, split like a shell does. The last word is incomplete and may be empty.

    >>> _words("sfumato train 'my pict"), _words("sfumato train "), _words(r"sfumato my\\ run")
    (['sfumato', 'train', 'my pict'], ['sfumato', 'train', ''], ['sfumato', 'my run'])
    """
    for closing in ("", "'", '"', "\\"):
        try:
            words = shlex.split(line + closing)
        except ValueError:
            continue
        return [*words, ""] if (not closing and re.search(r"(?<!\\)\s$", line)) or not words else words
    return [""]
