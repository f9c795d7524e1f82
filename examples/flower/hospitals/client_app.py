"""A site: Flower's usual ClientApp, whose training is one call of `private_rounds`.

A site says where it keeps its run, and may take part in fewer rounds than the server has:
flower-supernode --node-config "site=0 directory='/var/lib/hospital/run' rounds=12"
"""

from __future__ import annotations

import traceback

import torch
from flwr.app import ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable

import sfumato
from hospitals.task import images_of, network

USED_UP = "the privacy budget is used up"


def discreet(message: Message, context: Context, train: ClientAppCallable) -> Message:
    """Flower would send the text of an error, which may name files and records: the server learns only that there is
    one, or that the budget is used up, and goes on without the site."""
    try:
        return train(message, context)
    except Exception as error:
        traceback.print_exc()  # for the site alone
        reason = USED_UP if USED_UP in str(error) else "the site takes no part in this round"
        return Message(Error(code=0, reason=reason), reply_to=message)


app = ClientApp(mods=[discreet])


@app.train()
def train(message: Message, context: Context) -> Message:
    """One round: the server's weights in, private steps, the site's weights out."""
    model, (images, labels) = network(), images_of(context.node_config["site"], context.run_config["sites"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    rounds = context.node_config.get("rounds", context.run_config["rounds"])
    plan = {"rounds": rounds, "steps": 3 * rounds, "batch_size": len(images), "epsilon": 3.0}
    place = context.node_config["directory"]
    run = sfumato.private_rounds(model, optimizer, (images, labels), **plan, directory=place)
    weights = run.train(message.content["arrays"].to_torch_state_dict())
    content = {"arrays": ArrayRecord(weights), "metrics": MetricRecord({"num-examples": run.plan.expected_batch_size})}
    return Message(RecordDict(content), reply_to=message)
