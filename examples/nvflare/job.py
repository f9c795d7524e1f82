"""Hospitals that train together on NVFlare's simulator: python job.py PLACE [--rounds 20] [--sites 3]

NVFlare's own federated averaging; what is private is in client.py. PLACE/runs keeps each site's run: in a real
federation it is a directory of the site's own. Filters that clip or add noise (SVTPrivacy, PercentilePrivacy) are not
needed, and only cost accuracy.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from network import Network, images_of
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import SimEnv


class Averaging(FedAvgRecipe):
    """Goes on without a site that fails. By default, the error of one site ends the job of all."""

    def _get_controller_kwargs(self) -> dict[str, object]:
        return {"ignore_result_error": True}


def main() -> None:
    """Run the job, and print the accuracy and each site's promise."""
    parser = argparse.ArgumentParser()
    parser.add_argument("place", type=Path)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--sites", type=int, default=3)
    given = parser.parse_args()
    runs = (given.place / "runs").resolve()
    if len([*runs.glob("*/statement.json")]) == given.sites:
        parser.error(f"all runs in {runs} are finished, so no site would train; give another PLACE")
    recipe = Averaging(
        name="hospitals",
        model=Network(),
        min_clients=given.sites,
        num_rounds=given.rounds,
        train_script="client.py",
        train_args=f"--runs {runs} --rounds {given.rounds} --sites {given.sites}",
        key_metric="",
        launch_external_process=True,  # a process for each round: one that dies is missing in that round alone
        launch_once=False,
    )
    done = recipe.execute(SimEnv(num_clients=given.sites, workspace_root=str(given.place / "nvflare")))
    found = next(Path(done.get_result()).rglob("FL_global_model.pt"))
    model, (images, labels) = Network(), images_of(-1, 1)
    model.load_state_dict(torch.load(found, weights_only=True)["model"])
    with torch.no_grad():
        print(f"accuracy {(model(images).argmax(1) == labels).double().mean():.1%}")
    for statement in sorted(runs.glob("*/statement.json")):
        print(f"{statement.parent.name}: {json.loads(statement.read_text())['sentence']}")


if __name__ == "__main__":
    main()
