"""A model from the user's own function, named `package:function`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from sfumato._checks import SfumatoError


def create(name: str, options: Mapping[str, Any], *, classes: int, channels: int, size: tuple[int, int]) -> nn.Module:
    """Import `package` (from the path or the working directory) and call `function(classes=, channels=, size=)`.

    Args:
        name: `package:function` or `package.module:function`.
        options: further keywords of the call.
        classes: number of classes.
        channels: colour channels C.
        size: height and width (H, W) in pixels.

    Raises:
        SfumatoError: no such module or function, a call that fails, or a result that is no `nn.Module`.
    """
    module_name, _, function_name = name.partition(":")
    module = _import(name, module_name)
    function = getattr(module, function_name, None)
    if not callable(function):
        found = "has no such name" if function is None else "is not callable there"
        raise SfumatoError(
            f"model {name!r}: {function_name or 'the empty name'} {found} in {module_name}",
            "name a function that builds the model, as in package:function",
        )
    try:
        model = function(classes=classes, channels=channels, size=size, **options)
    except TypeError as error:
        given = "".join(f", {key}={value!r}" for key, value in options.items())
        raise SfumatoError(
            f"model {name!r}: the call {function_name}(classes={classes}, channels={channels}, size={size}{given}) "
            f"failed: {error}",
            f"let the function take these {'keywords' if options else 'three keywords'}",
        ) from error
    if not isinstance(model, nn.Module):
        raise SfumatoError(
            f"model {name!r}: {function_name} returned a {type(model).__name__}, not a torch.nn.Module",
            "let the function return the model",
        )
    return model


def _import(name: str, module_name: str):
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
    finally:
        if added:
            sys.path.remove(here)
