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


def check_trusted(spelling: str, named: str | None, *, where: str | Path, remedy: str) -> str:
    """Returns a model spec from a file, if it needs no code outside this package or if the user has named it.

    A file may come from anyone, and importing a module that it names would run its code.

    Args:
        spelling: the spec in the file.
        named: the spec given by the user, or None.
        where: the file.
        remedy: how the user can name a model, with `{}` for its spec.

    Raises:
        SfumatoError: the file names code that the user did not name.

    >>> check_trusted("wrn-16-4", None, where="a.safetensors", remedy="")
    'wrn-16-4'
    """
    if not is_custom(spelling) or spelling == named:
        return spelling
    raise SfumatoError(
        f"{where} names custom code {spelling!r}{'' if named is None else f', not {named!r}'}, and code is never "
        "run just because a file names it",
        remedy.format(spelling),
    )


def is_custom(spelling: str) -> bool:
    """Whether a spec names custom code, which may bring its own weights.

    >>> is_custom("mine:build,depth=2"), is_custom("timm:resnet10t"), is_custom("cnn")
    (True, False, False)
    """
    return ":" in parse(spelling)[0] and not spelling.startswith(zoo.PREFIX)


def create_custom(name: str, options: Mapping[str, Any], **facts: Any) -> nn.Module:
    """Imports `package` (from the path or the working directory) and calls its function with facts about the data.

    Args:
        name: `package:function` or `package.module:function`.
        options: further keywords of the call.
        facts: for images classes, channels and size (H, W); for texts classes, vocabulary and length.

    Raises:
        SfumatoError: no such module or function, a call that fails (the cause is chained), or a result that is not an
            `nn.Module`.
    """
    function = import_function(name)
    try:
        model = function(**facts, **options)
    except SfumatoError:
        raise
    except Exception as error:
        if not isinstance(error, TypeError) or _raised_within(error):
            raise SfumatoError(f"model {name!r} {_error_text(error)}", "fix it there") from error
        arguments = ", ".join(f"{key}={value!r}" for key, value in {**facts, **options}.items())
        call = f"{name.partition(':')[2]}({arguments})"
        raise SfumatoError(
            f"model {name!r}: the call {call} failed: {error}",
            f"make the function accept these {'keywords' if options else 'three keywords'}",
        ) from error
    if not isinstance(model, nn.Module):
        raise SfumatoError(
            f"model {name!r}: {name.partition(':')[2]} returned a {type(model).__name__}, not a torch.nn.Module",
            "make the function return the model",
        )
    return model


def import_function(spelling: str) -> Callable[..., Any]:
    """Imports the function that `package:function,options` names, from the path or the working directory.

    Raises:
        SfumatoError: no such module or function.
    """
    name, _ = parse(spelling)
    module_name, _, function_name = name.partition(":")
    function = getattr(_import(name, module_name), function_name, None)
    if not callable(function):
        problem = "does not exist" if function is None else "is not callable"
        raise SfumatoError(
            f"model {name!r}: {function_name or 'the empty name'} {problem} in {module_name}",
            "name a function that builds the model, as in package:function",
        )
    return function


@contextmanager
def away_from_working_directory() -> Iterator[None]:
    """Removes the working directory from the path, so that modules next to a file are not imported."""
    here, before = Path.cwd(), list(sys.path)
    sys.path[:] = [entry for entry in before if entry and Path(entry).absolute() != here]
    try:
        yield
    finally:
        sys.path[:] = before


def _raised_within(error: Exception) -> bool:
    """Whether the error was raised within the function; otherwise the arguments did not match its signature."""
    return error.__traceback__ is not None and error.__traceback__.tb_next is not None


def _error_text(error: Exception) -> str:
    """The error and its location, on one line. The message of a `SyntaxError` has the location."""
    message = " ".join(str(error).split())
    problem = f"raised {type(error).__name__}{f': {message}' if message else ''}"
    if isinstance(error, SyntaxError):
        return problem
    frames = traceback.extract_tb(error.__traceback__)
    user_frames = [frame for frame in frames if not _LIBRARIES.intersection(Path(frame.filename).parts)] or frames
    return f"{problem} ({Path(user_frames[-1].filename).name}:{user_frames[-1].lineno})"


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
            "install it, or start from the folder that contains it; sfumato's own models have no colon",
        ) from error
    except Exception as error:
        raise SfumatoError(
            f"model {name!r}: the module {module_name!r} {_error_text(error)}", "fix it there"
        ) from error
    finally:
        if added:
            sys.path.remove(here)
