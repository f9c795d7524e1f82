"""A federation of three sites as real processes, on Flower and on NVFlare's simulator, by the examples."""

import contextlib
import importlib.util
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import sfumato
from benchmarks.shared.federations import Processes, end, free_port, paid
from sfumato.privacy import ledger
from sfumato.runs import directory as names
from sfumato.training.custom.rounds import PrivateRounds
from tests.scripts import loaded

ROOT = Path(__file__).resolve().parents[1]
FLOWER, NVFLARE = ROOT / "examples" / "flower", ROOT / "examples" / "nvflare"
STEPS = 3
PAID = STEPS + 2
HELD = """
import os
import time
from pathlib import Path

from sfumato.training import loop

descend, killed, ledger = loop.descend, Path({killed!r}), Path({ledger!r})


def held(*given):
    while not killed.exists() and ledger.exists() and ledger.read_bytes().count(b'"kind":"release"') == {paid}:
        time.sleep(0.05)
    descend(*given)


loop.descend = held
"""
"""Lets no site go on while one has paid so many steps, until it was killed: in the middle of a round."""
MINUTES = 60
"""Allows for a slow machine with much else to do."""


def needs(library: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(library) is None, reason=f"{library} is not installed")


def held(run: Path, killed: Path) -> str:
    return HELD.format(killed=str(killed), ledger=str(run / names.LEDGER), paid=PAID)


def wait(reached: Callable[[], object], said: Callable[[], str], pause: float = 0.05) -> None:
    until = time.monotonic() + 20 * MINUTES
    while not reached():
        assert time.monotonic() < until, said()
        time.sleep(pause)


def digits(site: int, example: Path = FLOWER / "hospitals" / "task.py") -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """The example's network, and the images and labels of a site; of site -1 those that nobody trains on."""
    agreed = loaded(example)
    network = agreed.network if hasattr(agreed, "network") else agreed.Network
    return network(), agreed.images_of(site, 3)


def of_site(model: nn.Module, data: tuple[torch.Tensor, ...], directory: Path, rounds: int) -> PrivateRounds:
    """The run of a site, as its client makes it."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    choices = {"rounds": rounds, "steps": STEPS * rounds, "batch_size": len(data[0]), "epsilon": 3.0}
    return sfumato.private_rounds(model, optimizer, data, directory=directory, **choices)


def node(flower: Processes, site: int, rounds: int) -> subprocess.Popen[bytes]:
    """A site of Flower, with its run in the directory of its number."""
    config = f"site={site} directory='{flower.place / str(site)}' rounds={rounds}"
    superlink = ("--superlink", f"127.0.0.1:{flower.link}", "--port", free_port())
    return flower.start("flower-supernode", "--insecure", *superlink, "--node-config", config)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    with contextlib.closing(Processes(tmp_path, SFUMATO_HOME=str(tmp_path / "home"))) as made:
        yield made


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the libraries that flwr imports
@needs("flwr")
def test_the_server_of_flower_reads_no_error_of_a_site(monkeypatch: pytest.MonkeyPatch):
    """Not one of the records either, which come before the rounds."""
    monkeypatch.syspath_prepend(FLOWER)
    client = importlib.import_module("hospitals.client_app")

    def unreadable(*given: object) -> None:
        raise FileNotFoundError("patient-17.png")

    monkeypatch.setattr(client, "images_of", unreadable)
    monkeypatch.setattr(client, "Message", lambda error, reply_to: error)
    message = SimpleNamespace(metadata=SimpleNamespace(message_type="train"), has_error=lambda: False)
    reply = client.app(message, SimpleNamespace(node_config={"site": 0}, run_config={"sites": 3}))
    assert reply.reason == "the site takes no part in this round"


@pytest.mark.slow
@pytest.mark.timeout(90 * MINUTES)
@needs("flwr")
def test_three_sites_of_flower(processes: Processes, monkeypatch: pytest.MonkeyPatch):
    """Site 0 is killed in round 2 and comes back; site 1 sends nothing in round 3; the budget of site 2 ends with 3."""
    place, rounds = processes.place, {0: 6, 1: 6, 2: 3}
    monkeypatch.setenv("SFUMATO_HOME", processes.environment["SFUMATO_HOME"])
    app = shutil.copytree(FLOWER, place / "app")
    client = app / "hospitals" / "client_app.py"
    dies = 'context.node_config["site"] == 1 and message.content["config"]["server-round"] == 3'
    changed = client.read_text().replace("    content = {", f"    if {dies}:\n        os._exit(1)\n    content = {{")
    client.write_text(changed + held(place / "0", place / "killed"))
    numbers: list[str] = []
    processes.start_link()
    nodes = [node(processes, site, rounds[site]) for site in rounds]
    begin = ("flwr", "run", "app", "--run-config", "rounds=6", "--format", "json")
    wait(lambda: "run-id" in (begun := processes.ask(*begin)) and numbers.append(begun) is None, lambda: "no job")
    number = re.findall(r'"run-id": "?(\d+)', numbers[0])[0]

    def said() -> str:
        return processes.ask("flwr", "log", number, "--show")

    wait(lambda: paid(place / "0") == PAID, said)
    end(nodes[0])
    (place / "killed").touch()
    node(processes, 0, 6)
    wait(lambda: "round 6:" in said(), said, pause=10)  # asking takes seconds
    log = said()
    assert "Node Unavailable" in log
    assert log.count("the privacy budget is used up") == 3
    counts = [int(found) for found in re.findall(r"aggregate_train: Received (\d) results", log)]
    assert counts == [3, 2, 2, 2, 2, 2]
    for site, planned in rounds.items():
        assert of_site(*digits(site), place / str(site), planned).finish().epsilon <= 3
        assert sfumato.verify(place / str(site)).holds
    lost = ledger.lost_steps(ledger.read(place / "0" / names.LEDGER), STEPS * 6)
    assert lost <= {3, 4, 5}
    assert lost
    together = float(re.findall(r"round 6: ([\d.]+)%", log)[0]) / 100
    assert together > 0.5  # it has learnt; what sites gain by each other is in benchmarks/accuracy/federation.py


@pytest.mark.slow
@pytest.mark.timeout(90 * MINUTES)
@needs("nvflare")
def test_three_sites_of_nvflare(processes: Processes, monkeypatch: pytest.MonkeyPatch):
    """The job is killed in round 2 and begun again. Then the budget of site 3 ends: it sends nothing. Site 2 fails in
    round 3 and its process ends in round 4, and the others go on. Site 1 takes all steps."""
    place = processes.place
    runs, killed = place / "place" / "runs", place / "killed"
    monkeypatch.setenv("SFUMATO_HOME", processes.environment["SFUMATO_HOME"])
    app = shutil.copytree(NVFLARE, place / "app")
    fewer = "    site = flare.get_site_name()\n    given.rounds -= 4 * (site == 'site-3')\n"
    text = re.sub(r"    site = .*\n", fewer, (app / "client.py").read_text())
    failures = """        if site == "site-2" and received.current_round == 2:
            raise RuntimeError("broken")
        if site == "site-2" and received.current_round == 3:
            os._exit(1)
        try:
"""
    text = text.replace("        try:\n", failures).replace(
        "def main()", f"{held(runs / 'site-1', killed)}\n\ndef main()"
    )
    (app / "client.py").write_text(text)
    program = [sys.executable, "job.py", str(place / "place"), "--rounds", "6"]
    job = processes.start(*program, where=app)
    wait(lambda: paid(runs / "site-1") == PAID, (place / "0.log").read_text)
    end(job)
    killed.touch()
    job = processes.start(*program, where=app)
    assert job.wait(20 * MINUTES) == 0, (place / "1.log").read_text()
    log = (place / "1.log").read_text()
    assert "site-3: the privacy budget is used up after round 2" in log
    assert log.count("Empty result from client site-3") >= 4
    assert log.count("Ignore the result from site-2") == 2
    assert paid(runs / "site-1") == 6 * STEPS
    for site, planned in enumerate((6, 6, 2)):
        run = of_site(*digits(site, NVFLARE / "network.py"), runs / f"site-{site + 1}", planned)
        assert run.finish().epsilon <= 3
        assert sfumato.verify(runs / f"site-{site + 1}").holds
    together = float(re.findall(r"accuracy ([\d.]+)%", log)[0]) / 100
    assert together > 0.5


@needs("nvflare")
def test_a_job_of_nvflare_whose_runs_are_all_finished_is_refused(tmp_path: Path, processes: Processes):
    for site in ("site-1", "site-2"):
        (tmp_path / "runs" / site).mkdir(parents=True)
        (tmp_path / "runs" / site / names.STATEMENT).touch()
    program = [sys.executable, "job.py", str(tmp_path), "--sites", "2"]
    done = subprocess.run(program, cwd=NVFLARE, env=processes.environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert "are finished, so no site would train; give another PLACE" in done.stderr
