"""For mkdocs: the README as the first page, and each notebook of this folder as a page with its stored outputs."""

from __future__ import annotations

import json
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

HERE = Path(__file__).parent


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the first page, and a page for each notebook; the notebook itself stays beside it, to be downloaded."""
    readme = (HERE.parents[1] / "README.md").read_text("utf-8")
    files.append(File.generated(config, "index.md", content=first_page(readme)))
    for path in sorted(HERE.glob("*.ipynb")):
        content = page(json.loads(path.read_text("utf-8")), path.name)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=content))
    return files


def first_page(readme: str) -> str:
    """The README with its links as they lead from `docs/`; a file outside has no page, so its name alone stays."""
    return re.sub(r"(?<!!)\[([^\]]+)\]\((?!https?:|docs/)[^)]+\)", r"\1", readme).replace("(docs/", "(")


def on_page_markdown(markdown: str, **_: object) -> str:
    """Links to notebooks lead to their pages here; in the repository they lead to the files."""
    return re.sub(r"\((notebooks/[\w-]+)\.ipynb\)", r"(\1.md)", markdown)


def page(notebook: dict, name: str) -> str:
    """A notebook as Markdown: its title, a link to the file, and its cells with what they gave."""
    title, *cells = notebook["cells"]
    link = f"[This page as a notebook]({name}){{: download }}, with the outputs of one run."
    return "\n\n".join(["".join(title["source"]), link, *(part for cell in cells for part in parts(cell))]) + "\n"


def parts(cell: dict) -> list[str]:
    """The Markdown of a cell."""
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return [source]
    found = [f"```python\n{source}\n```"]
    for output in cell["outputs"]:
        shown = output.get("data", {})
        if "text/html" in shown:
            found.append("".join(shown["text/html"]))
        else:
            text = "".join(output.get("text", shown.get("text/plain", [])))
            found.append(f"```text\n{text.rstrip()}\n```")
    return found
