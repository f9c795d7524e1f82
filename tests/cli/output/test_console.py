"""What is said while something takes long."""

from __future__ import annotations

import time

from sfumato.cli.output import console


def test_off_a_terminal_a_line_says_what_takes_long_and_nothing_what_does_not(capsys, monkeypatch):
    monkeypatch.setattr(console, "SLOW_SECONDS", 0.05)
    with console.bar("calibrating"):
        time.sleep(0.5)
    with console.bar("comparing"):
        pass
    time.sleep(0.2)
    assert capsys.readouterr().err == "calibrating ...\n"
