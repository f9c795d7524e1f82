"""Federations as processes on this machine.

Those of `federation_kills.py` are the examples with seeds, slower steps, and a server that waits for all.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import torch

from sfumato.runs import pins

ROOT = Path(__file__).parents[2]
SITES, STEPS = 3, 6

SLOW = """

import time

from sfumato.training import loop

descend = loop.descend
loop.descend = lambda *given: (time.sleep({pause}), descend(*given))
"""
"""Makes each step long enough to be killed after it was paid and before a checkpoint has it."""

FLOWER_SERVER = '''
class Complete(FedAvg):
    """The average of all sites in one order, or none; nothing is asked for after the last round."""

    done, rounds, sites = 0, {rounds}, {sites}

    def configure_train(self, *given):
        return super().configure_train(*given) if self.done < self.rounds else []

    def aggregate_train(self, server_round, replies):
        if self.done == self.rounds:
            return None, None
        found = {{reply.content["metrics"]["site"]: reply for reply in replies if not reply.has_error()}}
        with open({place!r} + "/requests.txt", "a") as file:
            print(len(found), file=file)
        if len(found) < self.sites:
            return None, None
        arrays, metrics = super().aggregate_train(server_round, [found[site] for site in sorted(found)])
        self.done += 1
        weights = arrays.to_torch_state_dict()
        with open({place!r} + "/rounds.txt", "a") as file:
            print(pins.weights_digest(weights), file=file)
        return arrays, metrics


'''

NVFLARE_SERVER = '''

class Complete(ModelAggregator):
    """The average of all sites in one order, or a change by nothing; a metric counts the complete rounds."""

    def __init__(self, sites, place):
        super().__init__()
        self.sites, self.place, self.done, self.found = sites, place, 0, {}

    def accept_model(self, model):
        self.found[model.meta["client_name"]] = model.params

    def aggregate_model(self):
        found = [self.found[name] for name in sorted(self.found)]
        with open(self.place + "/requests.txt", "a") as file:
            print(len(found), file=file)
        if len(found) < self.sites:
            return FLModel(params_type=ParamsType.DIFF, params={}, metrics={"complete": self.done})
        self.done += 1
        weights = {name: sum(one[name] for one in found) / np.float32(self.sites) for name in found[0]}
        with open(self.place + "/rounds.txt", "a") as file:
            print(pins.weights_digest({name: torch.from_numpy(value) for name, value in weights.items()}), file=file)
        return FLModel(params=weights, metrics={"complete": self.done})

    def reset_stats(self):
        self.found = {}
'''


def paid(directory: Path) -> int:
    """The number of steps that a run has paid for, also while it writes."""
    with contextlib.suppress(FileNotFoundError):
        return (directory / "ledger.jsonl").read_bytes().count(b'"kind":"release"')
    return 0


def end(process: psutil.Process | subprocess.Popen[bytes]) -> None:
    """Kill a process and all that it started, also in sessions of their own."""
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(process.pid)
        root.suspend()  # it starts no others meanwhile
        for one in (*root.children(recursive=True), root):
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
    with contextlib.suppress(psutil.TimeoutExpired):
        process.wait(20)


def replaced(path: Path, *pairs: tuple[str, str]) -> None:
    """Replaces texts of a file, each of which stands there once."""
    text = path.read_text()
    for old, new in pairs:
        if text.count(old) != 1:
            sys.exit(f"{path}: {old!r} stands there {text.count(old)} times")
        text = text.replace(old, new)
    path.write_text(text)


def free_port() -> str:
    """A port of the loopback interface that is free."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


class Processes:
    """Processes that end together, with the environment and Flower's configuration for all of them.

    Args:
        place: their directory.
        environment: further variables.
    """

    def __init__(self, place: Path, **environment: str):
        self.place, self.processes, self.link = place, list[subprocess.Popen[bytes]](), free_port()
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
        sources = os.pathsep.join((str(ROOT / "src"), os.environ.get("PYTHONPATH", "")))
        here = {"FLWR_HOME": str(place / "flower"), "FLWR_TELEMETRY_ENABLED": "0", **environment}
        here |= {"PYTHONDONTWRITEBYTECODE": ""}  # with which each of the many processes would compile all of torch
        self.environment = os.environ | here | {"PATH": path, "PYTHONPATH": sources, "OMP_NUM_THREADS": "1"}
        (place / "flower").mkdir()
        (place / "flower" / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{self.link}"\ninsecure = true\n'
        )

    def start(self, *words: str, where: Path | None = None) -> subprocess.Popen[bytes]:
        """A process that writes to a file of its own."""
        with (self.place / f"{len(self.processes)}.log").open("wb") as log:
            process = subprocess.Popen(words, env=self.environment, stdout=log, stderr=log, cwd=where or self.place)
        self.processes.append(process)
        return process

    def start_link(self) -> subprocess.Popen[bytes]:
        """Flower's server."""
        return self.start(
            "flower-superlink", "--insecure", "--port", self.link, "--disable-runtime-dependency-installation"
        )

    def ask(self, *words: str) -> str:
        """What a command prints."""
        done = subprocess.run(words, env=self.environment, capture_output=True, text=True, cwd=self.place, timeout=600)
        return done.stdout + done.stderr

    def close(self) -> None:
        """End all processes."""
        for process in self.processes:
            end(process)


class Federation(Processes):
    """Three sites and a server, as processes.

    Args:
        place: a directory of its own.
        rounds: R.
        pause: seconds that each step takes longer.
    """

    library = ""
    can_begin_again = False

    def __init__(self, place: Path, rounds: int, pause: float):
        place.mkdir()
        super().__init__(place)
        self.total, self.app = rounds, place / "app"
        self._prepare(SLOW.format(pause=pause))

    @property
    def version(self) -> str:
        """The framework and its version."""
        return f"{self.library} {importlib.metadata.version(self.library)}"

    def rounds(self) -> list[str]:
        """SHA-256 of the server's weights after each complete round."""
        found = self.place / "rounds.txt"
        return list(dict.fromkeys(found.read_text().split())) if found.exists() else []

    def requests(self) -> int:
        """How often the server has asked, with the rounds that had to be repeated."""
        return len((self.place / "requests.txt").read_text().split())

    def run(self, site: int) -> Path:
        """The run directory of a site."""
        return self.place / "runs" / f"site-{site + 1}"


class Flower(Federation):
    """SuperLink and SuperNodes on the loopback interface. A killed site is a SuperNode with all that it started."""

    library = "flwr"

    def _prepare(self, slow: str) -> None:
        shutil.copytree(ROOT / "examples" / "flower", self.app)
        hospitals, here = self.app / "hospitals", {"place": str(self.place), "rounds": self.total, "sites": SITES}
        replaced(
            hospitals / "server_app.py",
            ("app = ServerApp()", "from sfumato.runs import pins\n\napp = ServerApp()" + FLOWER_SERVER.format(**here)),
            ("strategy = FedAvg(", "strategy = Complete("),
            (", evaluate_fn=accuracy", ""),
        )
        replaced(
            hospitals / "client_app.py",
            ('"epsilon": 3.0', '"epsilon": 3.0, "threads": 1, "seed": context.node_config["site"]'),
            ("3 * rounds", f"{STEPS} * rounds"),
            ('{"num-examples":', '{"site": context.node_config["site"], "num-examples":'),
            ('"rounds", context.run_config["rounds"]', f'"rounds", {self.total}'),
            ("app = ClientApp(mods=[discreet])", "app = ClientApp(mods=[discreet])" + slow),
        )

    def begin(self) -> None:
        """Start the link, the nodes and the job."""
        self.server = self.start_link()
        self.nodes = [self.node(site) for site in range(SITES)]
        until = time.monotonic() + 600
        begin = ("flwr", "run", "app", "--run-config", f"rounds={100 * self.total}", "--format", "json")
        while "run-id" not in (said := self.ask(*begin)):
            if time.monotonic() > until:
                sys.exit(said)

    def node(self, site: int) -> subprocess.Popen[bytes]:
        """A site. Heartbeats three times as often as by default: a third of the wait until one is missed."""
        quicker = (
            "from flwr.supercore import heartbeat; from flwr.supernode import fleet_http_connection as fleet; "
            "heartbeat.HEARTBEAT_DEFAULT_INTERVAL = fleet.HEARTBEAT_DEFAULT_INTERVAL = 10; "
            "from flwr.supernode.cli import flower_supernode; flower_supernode()"
        )
        config = f"site={site} directory='{self.run(site)}'"
        link = ("--insecure", "--superlink", f"127.0.0.1:{self.link}", "--port", free_port())
        return self.start(sys.executable, "-c", quicker, *link, "--node-config", config)

    def process(self, site: int) -> psutil.Process | None:
        """The process that trains now."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for one in psutil.Process(self.nodes[site].pid).children(recursive=True):
                if one.status() != psutil.STATUS_ZOMBIE and "flwr-clientapp" in " ".join(one.cmdline()):
                    return one
        return None

    def kill(self, site: int) -> None:
        """Kill a site's processes and start it again."""
        end(self.nodes[site])
        self.nodes[site] = self.node(site)

    def check(self) -> None:
        """Stops where the server has ended."""
        if self.server.poll() is not None:
            sys.exit("the server has ended")

    def conclude(self) -> None:
        """Nothing is left to do: sites conclude their runs with the last round."""


class NVFlare(Federation):
    """The simulator. A killed site is the process of its script; a job that is killed goes on from its last model."""

    library = "nvflare"
    can_begin_again = True

    def _prepare(self, slow: str) -> None:
        shutil.copytree(ROOT / "examples" / "nvflare", self.app)
        imports = (
            "import numpy as np\n"
            "from nvflare.app_common.abstract.fl_model import FLModel, ParamsType\n"
            "from nvflare.app_common.aggregators.model_aggregator import ModelAggregator\n"
            "from sfumato.runs import pins\n"
        )
        replaced(
            self.app / "job.py",
            ('"--rounds", type=int, default=20)', '"--rounds", type=int)\n    parser.add_argument("--initial")'),
            ("from network import Network, images_of", "from network import Complete, Network, images_of"),
            ("num_rounds=given.rounds", f"num_rounds={100 * self.total}"),
            ("--rounds {given.rounds}", f"--rounds {self.total}"),
            (
                'key_metric=""',
                f'aggregator=Complete({SITES}, {str(self.place)!r}), stop_cond=f"complete >= {{given.rounds}}", '
                'key_metric="", initial_ckpt=given.initial',
            ),
        )
        replaced(self.app / "network.py", ("import torch\n", f"{imports}import torch\n"))
        with (self.app / "network.py").open("a") as file:
            file.write(NVFLARE_SERVER)
        replaced(
            self.app / "client.py",
            ("epsilon=3.0", "epsilon=3.0, threads=1, seed=int(site.removeprefix('site-'))"),
            ("steps=3 * given.rounds", f"steps={STEPS} * given.rounds"),
            ("def main()", f"{slow}\n\ndef main()"),
        )
        self.begun, self.model, self.done = 0, None, 0

    def begin(self) -> None:
        """Start the job, from the server's last model where there is one."""
        self.begun += 1
        more = ("--initial", str(self.model)) if self.model else ()
        rounds = ("--rounds", str(self.total - self.done))
        self.job = self.start(sys.executable, "job.py", str(self.place), *rounds, *more, where=self.app)

    def begin_again(self) -> None:
        """Kill all processes of the job and begin it again, in a workspace of its own."""
        end(self.job)
        workspace = self.place / "nvflare"
        for found in workspace.rglob("FL_global_model.pt"):
            copy = self.place / f"server-{self.begun}.pt"
            shutil.copy(found, copy)
            with contextlib.suppress(Exception):  # a file that was being written; no site has seen what it holds
                self.done = self.rounds().index(pins.weights_digest(torch.load(copy, weights_only=True)["model"])) + 1
                self.model = copy
        workspace.rename(self.place / f"nvflare-{self.begun}")
        self.begin()

    def process(self, site: int) -> psutil.Process | None:
        """The process that trains now."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for one in psutil.Process(self.job.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    if "custom/client.py" in one.cmdline() and f"site-{site + 1}" in Path(one.cwd()).parts:
                        return one
        return None

    def kill(self, site: int) -> None:
        """Kill the process of a site's script. NVFlare starts it again for the next request."""
        process = self.process(site)
        if process:
            end(process)

    def check(self) -> None:
        """Stops where the job has ended too early."""
        if self.job.poll() is not None and len(self.rounds()) < self.total:
            sys.exit((self.place / f"{len(self.processes) - 1}.log").read_text()[-5000:])

    def conclude(self) -> None:
        """Waits for the job's end."""
        self.job.wait(300)


FRAMEWORKS = {"flower": Flower, "nvflare": NVFlare}
