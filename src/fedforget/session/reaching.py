"""How a session reaches clients on other machines: a wire over Flower, from a command or from a ServerApp."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

from fedforget.algorithm.ids import Id
from fedforget.federation.flower.deployment import deployed
from fedforget.federation.flower.grid import GridWire
from fedforget.federation.post import Post
from fedforget.federation.remote import RemoteFederation
from fedforget.federation.wires import Signatures, SignedWire, Wire
from fedforget.session.deployment import MakeWire, public_key_of, run_id
from fedforget.session.workforce import Workforce
from fedforget.store.run_directory import OpenRun

_POLL = 0.2  # seconds: each look costs Flower some milliseconds
OnPost = Callable[[], contextlib.AbstractContextManager[Post]]


def wire_over(post: OnPost, patience: float) -> MakeWire:
    """Return what reaches the clients of a run by a post. ``patience``: seconds that a client may stay silent."""

    @contextlib.contextmanager
    def reached(run: OpenRun, signatures: Signatures) -> Iterator[Wire]:
        with post() as carrier:
            nodes = run.remote.contacts.nodes if run.is_open_to_write else dict(run.remote.contacts.nodes)
            yield GridWire(carrier, nodes, patience=patience, poll=_POLL, client_of=signatures.client_of)

    return reached


@contextlib.contextmanager
def replaying(run: OpenRun, make_wire: MakeWire, rounds_of: Mapping[Id, Sequence[int]]) -> Iterator[RemoteFederation]:
    """Reach the clients of a run that is open for reading, to replay its rounds. Nothing is written."""
    contacts = run.remote.contacts
    signatures = Signatures(lambda client: public_key_of(run, client))
    with make_wire(run, signatures) as wire:
        yield RemoteFederation(
            SignedWire(wire, signatures), run_id(run), contacts, lambda _: (), replaying=lambda c: rounds_of.get(c, ())
        )


def deployed_wire(workforce: Workforce) -> MakeWire:
    """Return what reaches clients by the SuperLink that a command names."""
    return wire_over(lambda: deployed(workforce.superlink or ""), workforce.patience)
