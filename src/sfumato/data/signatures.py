"""What the classes of torchvision's data sets take, read from its files: importing them takes seconds."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path


def read() -> dict[str, Mapping[str, bool]]:
    """Of each class in `torchvision.datasets`, in its order: its arguments, and whether each must be given.

    What a class passes on (`**kwargs`) its first base takes. Empty where torchvision, or a file of it, is not there.
    """
    found = find_spec("torchvision")
    if found is None or not found.submodule_search_locations:
        return {}
    folder = Path(found.submodule_search_locations[0]) / "datasets"
    try:
        listed = ast.parse((folder / "__init__.py").read_bytes()).body
        files = {node.module for node in listed if isinstance(node, ast.ImportFrom) and node.level == 1}
        parsed = [ast.parse((folder / f"{file}.py").read_bytes()).body for file in sorted(filter(None, files))]
    except (OSError, SyntaxError):
        return {}
    classes = {one.name: one for body in parsed for one in body if isinstance(one, ast.ClassDef)}
    return {name: dict(_arguments(name, classes)) for name in _offered(listed) if name in classes}


def _offered(body: list[ast.stmt]) -> list[str]:
    """What `__all__` names."""
    values = [one.value for one in body if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "__all__"]
    return [*ast.literal_eval(values[-1])] if values else []


def _arguments(name: str, classes: Mapping[str, ast.ClassDef]) -> Iterator[tuple[str, bool]]:
    """Of the class of this name; nothing of one from elsewhere."""
    if (kind := classes.get(name)) is None:
        return
    base = ast.unparse(kind.bases[0]) if kind.bases else ""
    own = next((one for one in kind.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"), None)
    if own is None:
        yield from _arguments(base, classes)
        return
    if own.args.kwarg is not None:
        yield from _arguments(base, classes)
    plain = [*own.args.posonlyargs, *own.args.args][1:]  # without self
    given = len(plain) - min(len(own.args.defaults), len(plain))
    yield from ((one.arg, place < given) for place, one in enumerate(plain))
    yield from ((one.arg, value is None) for one, value in zip(own.args.kwonlyargs, own.args.kw_defaults, strict=True))
