"""How a model is spelt: its name, and options after commas; and a model from the user's own function,
`package:function`.

The spelling alone rebuilds the model, so it is what a run records.
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from sfumato._checks import SfumatoError
from sfumato.models.networks import zoo


def parse(spelling: str) -> tuple[str, dict[str, Any]]:
    """Splits a model spec into name and options. Values are Python numbers, True, False, None and tuples, or text.

    >>> parse("wrn-16-4"), parse("wrn-16-1,norm=none,standardise=False")
    (('wrn-16-4', {}), ('wrn-16-1', {'norm': 'none', 'standardise': False}))
    >>> parse("timm:dm_nfnet_f0,skipinit=1,depths=(1,2,6,3)")
    ('timm:dm_nfnet_f0', {'skipinit': 1, 'depths': (1, 2, 6, 3)})
    """
    name, *parts = re.split(r",(?![^(]*\))", spelling)  # not at the commas inside a tuple
    options: dict[str, Any] = {}
    for part in parts:
        key, equals, value = part.partition("=")
        if not equals or not key.isidentifier():
            raise SfumatoError(
                f"model {spelling!r}: {part!r} is not an option",
                "write options as in wrn-16-4,norm=none, without spaces",
            )
        if key in options:
            raise SfumatoError(f"model {spelling!r}: the option {key} is given twice", "give it once")
        try:
            options[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            options[key] = value
    return name, options


def refuse_unknown(name: str, options: Mapping[str, Any], known: Sequence[str]) -> None:
    """Refuses options that a model does not take."""
    unknown = sorted(set(options) - set(known))
    if unknown:
        remedy = f"it takes {', '.join(known)}" if known else "it takes none"
        raise SfumatoError(f"model {name!r} has no option {', '.join(unknown)}", remedy)


_LIBRARIES = frozenset({"site-packages", "dist-packages"})


def trusted(spelling: str, named: str | None, *, where: str | Path, remedy: str) -> str:
    """A model's spelling that a file has, if no code but the package's own is needed for it, or if its user names it.

    A file may come from anybody, and to import what it names is to run what it brings.

    Args:
        spelling: the file's word.
        named: what the user calls the model, or None.
        where: the file.
        remedy: how the user names a model here, with `{}` for its spelling.

    Raises:
        SfumatoError: the file names code that the user doesn't.

    >>> trusted("wrn-16-4", None, where="a.safetensors", remedy="")
    'wrn-16-4'
    """
    if not is_own(spelling) or spelling == named:
        return spelling
    raise SfumatoError(
        f"{where} names code of its own, {spelling!r}, {'' if named is None else f'and not {named!r}, '}and no code is "
        "run on the word of a file",
        remedy.format(spelling),
    )


def is_own(spelling: str) -> bool:
    """Whether a model of this spelling is built by code of the owner's, which may bring weights of its own.

    >>> is_own("mine:build,depth=2"), is_own("timm:resnet10t"), is_own("cnn")
    (True, False, False)
    """
    return ":" in parse(spelling)[0] and not spelling.startswith(zoo.PREFIX)


def create_own(name: str, options: Mapping[str, Any], **facts: Any) -> nn.Module:
    """Import `package` (from the path or the working directory) and call its function with what is known of the data.

    Args:
        name: `package:function` or `package.module:function`.
        options: further keywords of the call.
        facts: of images the number of classes, channels and size (H, W); of texts classes, vocabulary and length.

    Raises:
        SfumatoError: no such module or function, a call that fails (the cause is chained), or a result that is no
            `nn.Module`.
    """
    function = function_of(name)
    try:
        model = function(**facts, **options)
    except SfumatoError:
        raise
    except Exception as error:
        if not isinstance(error, TypeError) or _reached(error):
            raise SfumatoError(f"model {name!r} {_raised(error)}", "mend it there") from error
        given = ", ".join(f"{key}={value!r}" for key, value in {**facts, **options}.items())
        call = f"{name.partition(':')[2]}({given})"
        raise SfumatoError(
            f"model {name!r}: the call {call} failed: {error}",
            f"let the function take these {'keywords' if options else 'three keywords'}",
        ) from error
    if not isinstance(model, nn.Module):
        raise SfumatoError(
            f"model {name!r}: {name.partition(':')[2]} returned a {type(model).__name__}, not a torch.nn.Module",
            "let the function return the model",
        )
    return model


def function_of(spelling: str) -> Callable[..., Any]:
    """The function that `package:function,options` names, imported from the path or the working directory.

    Raises:
        SfumatoError: no such module or function.
    """
    name, _ = parse(spelling)
    module_name, _, function_name = name.partition(":")
    function = getattr(_import(name, module_name), function_name, None)
    if not callable(function):
        found = "has no such name" if function is None else "is not callable there"
        raise SfumatoError(
            f"model {name!r}: {function_name or 'the empty name'} {found} in {module_name}",
            "name a function that builds the model, as in package:function",
        )
    return function


@contextmanager
def away_from_working_directory() -> Iterator[None]:
    """The working directory is not on the path meanwhile, so that what lies beside a file is not imported."""
    here, before = Path.cwd(), list(sys.path)
    sys.path[:] = [entry for entry in before if entry and Path(entry).absolute() != here]
    try:
        yield
    finally:
        sys.path[:] = before


def _reached(error: Exception) -> bool:
    """Whether it comes from within the function; otherwise the call did not fit."""
    return error.__traceback__ is not None and error.__traceback__.tb_next is not None


def _raised(error: Exception) -> str:
    """What was raised and where, on one line; where the code cannot be parsed, the message has the place."""
    message = " ".join(str(error).split())
    problem = f"raised {type(error).__name__}{f': {message}' if message else ''}"
    if isinstance(error, SyntaxError):
        return problem
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not _LIBRARIES.intersection(Path(frame.filename).parts)] or frames
    return f"{problem} ({Path(theirs[-1].filename).name}:{theirs[-1].lineno})"


def _import(name: str, module_name: str):
    if module_name in sys.modules:
        return sys.modules[module_name]
    here = str(Path.cwd())
    added = here not in sys.path
    if added:
        sys.path.append(here)
    try:
        return importlib.import_module(module_name)
    except (ImportError, ValueError, TypeError) as error:
        raise SfumatoError(
            f"model {name!r}: the module {module_name!r} cannot be imported: {error}",
            "install it, or start from the folder that holds it; names in the package need no colon",
        ) from error
    except Exception as error:
        raise SfumatoError(f"model {name!r}: the module {module_name!r} {_raised(error)}", "mend it there") from error
    finally:
        if added:
            sys.path.remove(here)
