"""A private run that MLflow follows: settings, plan, epsilon at each evaluation, and the statement at the end.

    pip install 'sfumato[mlflow]'
    python examples/tracked.py

MLflow writes to mlflow.db here, or to the server in MLFLOW_TRACKING_URI. It gets no figure that was measured on private
data.
"""

from __future__ import annotations

import mlflow

import sfumato
from sfumato.observers import MLflow


def main(directory: str = "runs/tracked", uri: str = "sqlite:///mlflow.db", steps: int = 40) -> str:
    """Train, and name MLflow's run."""
    mlflow.set_tracking_uri(uri)
    source = sfumato.open_source("digits", owner_key=sfumato.owner_key(), public=False)
    tracker = MLflow(directory, public=source.public)
    run = sfumato.train("linear", source, directory=directory, epsilon=3, steps=steps, observers=[tracker])
    (found,) = mlflow.search_runs(filter_string=f"attributes.run_name = '{tracker.called}'", output_format="list")
    print(run.statement.sentence)
    print({name: round(value, 3) for name, value in found.data.metrics.items()})
    return found.info.run_id


if __name__ == "__main__":
    main()
