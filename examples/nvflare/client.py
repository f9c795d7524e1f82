"""A site: NVFlare's usual client script, whose training is one call of `private_rounds`."""

from __future__ import annotations

import argparse
from pathlib import Path

import nvflare.client as flare
import torch
from network import Network, images_of

import sfumato


def main() -> None:
    """Take part in every round until the server ends the job. After the plan's last round the answer is empty."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--sites", type=int, required=True)
    given = parser.parse_args()
    flare.init()
    site = flare.get_site_name()  # site-1, site-2, ...
    model, (images, labels) = Network(), images_of(int(site.removeprefix("site-")) - 1, given.sites)
    run = sfumato.private_rounds(
        model,
        torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9),
        (images, labels),
        rounds=given.rounds,
        steps=3 * given.rounds,
        batch_size=len(images),
        epsilon=3.0,
        directory=given.runs / site,
    )
    while flare.is_running():
        received = flare.receive()
        try:
            sent = run.train(received.params)
        except sfumato.SfumatoError as refusal:  # such as a used-up budget: the server goes on without the site
            print(f"{site}: {refusal}")
            sent = {}
        flare.send(flare.FLModel(params=sent, meta={"NUM_STEPS_CURRENT_ROUND": run.plan.expected_batch_size}))


if __name__ == "__main__":
    main()
