"""The web page on which users try the model. It shows the model's promise."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files

from markupsafe import Markup

from sfumato.report.style import stylesheet
from sfumato.serving.inference import Predictor


def page(answering: Predictor, *, closed: bool) -> tuple[str, str]:
    """Renders the page and its content security policy, which allows the page's own script only and no other host.

    Args:
        closed: whether requests need a key.
    """
    import jinja2

    folder = files("sfumato.serving")
    script = folder.joinpath("page.js").read_text("utf-8")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    statement = answering.loaded.statement.to_dict()
    text = environment.from_string(folder.joinpath("page.html.jinja").read_text("utf-8")).render(
        style=Markup(stylesheet()),
        script=Markup(script),
        sentence=statement["sentence"],
        plain=statement.get("plain", []),
        not_covered=statement.get("not_covered", []),
        of_texts=answering.takes_texts,
        of_numbers=answering.takes_numbers,
        verb="predict" if answering.loaded.embedding is None else "embed",
        closed=closed,
    )
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; connect-src 'self'; img-src blob:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'"
    )
    return text, policy
