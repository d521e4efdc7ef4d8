"""A user's Flower app: a ServerApp and a ClientApp from a model, a data function and a plan.

    app = server_app(model=build, data=samples_of, plan=Plan(...))
    app = client_app(model=build, data=samples_of)

``model()`` returns an ``nn.Module``. ``data(client)`` returns the samples of a client: a mapping of stable id → (x, y),
or a torch ``Dataset`` whose index is the id. Both apps get the same two functions.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedforget.algorithm.plan import Plan
from fedforget.algorithm.seeds import SeedSource
from fedforget.client_side.opened import Learning, OpenClient
from fedforget.data.federated import FederatedData
from fedforget.errors import FedForgetError, InvalidInput, quoted
from fedforget.federation.flower.client import client_app_of
from fedforget.federation.flower.nodes import GridNodes
from fedforget.federation.flower.post import GridPost
from fedforget.federation.pool import PATIENCE
from fedforget.flower.client import Answering, answering, learning_of
from fedforget.flower.server import Deployed, ShowProgress, is_deployed
from fedforget.requests.lifecycle import Receipt
from fedforget.requests.request_file import read_requests
from fedforget.run import Run
from fedforget.session.engine import Model
from fedforget.session.node_work import Built, NodeWorker, OwnSamples
from fedforget.session.status import Status
from fedforget.session.workforce import FLOWER_APP, Workforce
from fedforget.training.streams import own_streams, start_stream

if TYPE_CHECKING:
    from torch import Tensor, nn

MakeModel = Callable[[], "nn.Module"]
DataOf = Callable[[Any], Any]
MakeLoss = Callable[["Tensor", "Tensor"], "Tensor"]

log = logging.getLogger("flwr")  # what Flower shows of a run


def server_app(
    *,
    model: MakeModel,
    data: DataOf,
    plan: Plan,
    clients: Iterable[Any] | None = None,
    test: Callable[[], tuple[Any, Any]] | None = None,
    loss: MakeLoss | None = None,
    run: str | Path | None = None,
    seed: int | str | None = None,
) -> ServerApp:
    """Return a ServerApp that trains a run, carries out its pending requests, and goes on where it stopped.

    ``clients``: their ids (None: 0 up to the number of nodes). ``test()``: the server's test set, a pair (x, y). The
    run config may name the directory (``run``, an absolute path), the last round (``rounds``), the ``seed``,
    ``eval-every``, and a request file of data to leave out (``without``); its values take the place of the arguments.
    """
    app = ServerApp()
    chosen = None if clients is None else list(clients)

    def work(grid: Grid, config: Mapping[str, Any]) -> Status:
        given = config.get("seed", "")
        root = seed if given == "" else given
        directory = _directory(config.get("run") or run)
        if is_deployed(directory, config):
            return _deployed(grid, config, directory, SeedSource.of_person(root))
        ids = range(len(list(grid.get_node_ids()))) if chosen is None else chosen
        with own_streams():
            start_stream(SeedSource.of_person(root).initial_model())  # the initial weights are a function of the seed
            module = model()
        opened = Run(
            directory,
            plan,
            model=module,
            data=FederatedData({client: data(client) for client in ids}, None if test is None else test()),
            loss=loss,
            seed=root,
            without=read_requests(Path(str(config["without"])).expanduser()) if config.get("without") else (),
            federation=Workforce(FLOWER_APP, nodes=GridNodes(GridPost(grid))),
        )
        return _work_on(opened, config)

    def _deployed(grid: Grid, config: Mapping[str, Any], directory: Path, source: SeedSource) -> Status:
        with own_streams():
            start_stream(source.initial_model())
            module = model()
        files = Path(str(config["enrolled"])).expanduser() if config.get("enrolled") else None
        tests = None if test is None else test()
        there = Deployed(directory, plan, Model.of(module, loss), tests, source, files)
        shown = ShowProgress(_trained, _recomputed, _carried_out)
        until, every = int(config.get("rounds", 0)) or None, int(config.get("eval-every", 0)) or None
        return there.work(GridPost(grid), float(config.get("patience", 0)) or PATIENCE, until, every, shown)

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            _report(work(grid, context.run_config))
        except FedForgetError as error:
            log.error("fedforget: %s (%s)", error.message, error.hint)  # noqa: TRY400 (Flower shows where it was raised)
            raise

    return app


def client_app(*, model: MakeModel, data: DataOf, loss: MakeLoss | None = None) -> ClientApp:
    """Return the ClientApp beside ``server_app``: it computes local rounds on the data of a client."""

    def build(problem: Mapping[str, Any]) -> Built:
        built = Model.of(model(), loss)
        built.require_described(problem)
        return Built(built, OwnSamples(data))

    def learning(client: OpenClient) -> Learning:
        return learning_of(client, Model.of(model(), loss), data(client.client))

    @contextlib.contextmanager
    def opened(context: Context) -> Iterator[Answering]:
        with answering(context.node_config, learning) as found:
            yield found

    return client_app_of(opened, compute=NodeWorker(build))


def _directory(given: Any) -> Path:
    if given is None:
        raise InvalidInput("the run has no directory", hint="name one: --run-config \"run='/path'\"")
    path = Path(str(given)).expanduser()
    if not path.is_absolute():
        raise InvalidInput(
            f"{quoted(str(given))} is not an absolute path", hint="give one: Flower works in a directory of its own"
        )
    return path


def _work_on(run: Run, config: Mapping[str, Any]) -> Status:
    """Carry out what is pending, then train."""
    every = int(config.get("eval-every", 0)) or None
    for receipt in run.run_pending(everything=True, on_round=_recomputed, eval_every=every):
        _carried_out(receipt)
    return run.train(int(config.get("rounds", 0)) or None, on_round=_trained, eval_every=every)


def _carried_out(receipt: Receipt) -> None:
    log.info("fedforget: request %s is %s", receipt.id, receipt.state)


def _recomputed(round_: int) -> None:
    log.info("fedforget: round %d recomputed", round_)


def _trained(round_: int) -> None:
    log.info("fedforget: round %d trained", round_)


def _report(status: Status) -> None:
    """Log where the run stands. No digest: Flower keeps its log, and a digest would outlast an erasure there."""
    measured = "" if status.accuracy is None else f", accuracy {status.accuracy:.4f}"
    log.info("fedforget: %d of %d rounds%s", status.rounds_done, status.rounds, measured)
