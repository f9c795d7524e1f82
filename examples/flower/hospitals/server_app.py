"""The server: Flower's own federated averaging. Each site's promise holds against it, whatever it does."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from hospitals.task import images_of, network

app = ServerApp()


def accuracy(number: int, arrays: ArrayRecord) -> MetricRecord:
    """On images that no site trains on."""
    model, (images, labels) = network(), images_of(-1, 1)
    model.load_state_dict(arrays.to_torch_state_dict())
    with torch.no_grad():
        right = (model(images).argmax(1) == labels).double().mean()
    print(f"round {number}: {right:.1%}")
    return MetricRecord({"accuracy": float(right)})


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Average what the sites send, round by round."""
    strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=context.run_config["sites"])
    start = ArrayRecord(network().state_dict())
    strategy.start(grid, start, num_rounds=context.run_config["rounds"], evaluate_fn=accuracy)
