"""Test vectors of docs/receipt-format.md, from the library. ``python -m tests.evidence.receipt_vectors`` writes them.

The run is made up: its tree, events and key are fixed, so the vectors are the same whenever they are made.
"""

from __future__ import annotations

import copy
import hashlib
import json
import pathlib
from collections.abc import Callable
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedforget.algorithm.ids import Id, IdSet, id_block
from fedforget.algorithm.tree import Path, beside, joined, labels_of, leaves_of, path_of, root_of, salts_of, value_of
from fedforget.evidence.receipts.envelope import seal
from fedforget.evidence.receipts.opening import Opening
from fedforget.evidence.receipts.proofs import Proof, Target
from fedforget.evidence.receipts.receipt_key import key_id, public_pem
from fedforget.evidence.receipts.shape import DESTROYED, PREDICATE, RE_EXECUTE, STATEMENT, UNKNOWN
from fedforget.requests.links import BEGINNING, link, proof, shortcut_of
from fedforget.store.books.tree import sample_key

FILE = pathlib.Path(__file__).parents[2] / "docs" / "receipt-vectors.json"
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
TREE_KEY = bytes(range(100, 132))
CLIENTS: dict[Id, list[Id]] = {number: [0, 1] for number in range(12)}
CLIENTS |= {3: list(range(20)), "ward-7": ["a", "b", 5], 9: [0]}
GONE: dict[str, tuple[Id, Id | None]] = {
    "r-sample": (3, 14), "r-client": ("ward-7", None), "r-emptied": (9, 0), "r-text": (11, 0),
}  # fmt: skip
EVENTS = 60
PLACES = {"r-sample": 17, "r-client": 18, "r-emptied": 41, "r-text": 60}
Data = dict[Id, list[Id]]


def digest(*parts: object) -> bytes:
    return hashlib.sha256(repr(parts).encode()).digest()


DIGESTS = [BEGINNING, *(digest("event", number) for number in range(1, EVENTS + 1))]
HASHES = [BEGINNING]
for _number in range(1, EVENTS + 1):
    HASHES.append(link(_number, HASHES[-1], HASHES[shortcut_of(_number)], DIGESTS[_number]))


def steps(newer: int, older: int) -> list[list[str]]:
    return [[one.hex(), other.hex()] for one, other in proof(newer, older, DIGESTS.__getitem__, HASHES.__getitem__)]


# The tree


def without(data: Data, client: Id, sample: Id | None) -> Data:
    left = {**data, client: [each for each in data[client] if sample is not None and each != sample]}
    return {each: samples for each, samples in left.items() if samples}


def sample_leaves(data: Data, client: Id) -> list[tuple[bytes, bytes]]:
    ids = IdSet(data[client])
    return leaves_of(sample_key(TREE_KEY, id_block(client)), ids, [digest("content", client, each) for each in ids])


def client_leaves(data: Data) -> list[tuple[bytes, bytes]]:
    ids = IdSet(data)
    values = [digest("commitment", each) + root_of(sample_leaves(data, each)) for each in ids]
    return list(zip(labels_of(TREE_KEY, ids), values, strict=True))


def data_roots(data: Data) -> list[bytes]:
    """The roots of the 16 parts of the tree over clients, each of which begins with other four bits."""
    leaves = client_leaves(data)
    return [root_of([leaf for leaf in leaves if leaf[0][0] >> 4 == part], 4) for part in range(16)]


def client_path(data: Data, label: bytes) -> Path:
    part = label[0] >> 4
    leaves = [leaf for leaf in client_leaves(data) if leaf[0][0] >> 4 == part]
    return path_of(leaves, label, 4).below(beside(data_roots(data), part))


def opening_of(request: str) -> Opening:
    client, sample = GONE[request]
    salt = salts_of(TREE_KEY, IdSet([client]))[0]
    opened = None if sample is None else (sample, salts_of(sample_key(TREE_KEY, id_block(client)), IdSet([sample]))[0])
    return Opening(request, (client, salt), opened)


def proof_of(data: Data, request: str) -> Proof:
    target, client = opening_of(request).target, GONE[request][0]
    path = client_path(data, target.client)
    follows = target.sample is not None and client in data
    return Proof(path, path_of(sample_leaves(data, client), target.sample or b"") if follows else None)


# Receipts


def statement(request: str, before: Data, *, public: bool = False) -> dict[str, Any]:
    client, sample = GONE[request]
    after, place = without(before, client, sample), PLACES[request]
    earlier = max((each for each in PLACES.values() if each < place), default=None)
    target: Target = opening_of(request).target
    day = "2027-01-31"
    time = day if public else f"{day}T12:00:00.000+00:00"
    chain: dict[str, Any] = {"run": HASHES[1].hex(), "head": HASHES[place].hex()}
    if not public:
        previous = (
            {"sequence": earlier, "head": HASHES[earlier].hex(), "steps": steps(place, earlier)} if earlier else None
        )
        chain |= {"sequence": place, "previous": previous}
    export = {"time": time} if public else {"time": time, "mac": "66" * 16}
    predicate: dict[str, Any] = {
        "request": {
            "id": request, "pseudonym": "00" * 16, "level": "client" if sample is None else "sample",
            "basis": "exogenous", "state": "purged", "times": {"received": time, "purged": time}, "deadline": time,
            "reason": None,
        },
        "chain": chain,
        "form": "public" if public else "full",
        "counterfactual": {"plan": "11" * 32, "learner": "22" * 32, "commitments": "33" * 32, "rounds": 5},
        "state_mac": "44" * 16, "superseded": False, "guarantee": "law-and-path", "seeds_tainted": False,
        "version": "0.3.0", "target": target.as_dict(), "data_root_after": joined(data_roots(after)).hex(),
        "data_root_mac": "55" * 16, "absence": proof_of(after, request).as_dict(),
        "destroyed_or_rewritten": DESTROYED,
        "out_of_reach": {"exports": [export], "unknown": UNKNOWN},
        "re_execute": RE_EXECUTE,
    }  # fmt: skip
    if not public:
        predicate |= {
            "state_mac_before": "77" * 16, "first_changed_step": 7, "recomputed_steps": 4, "recomputed_rounds": 2,
            "guarantee_covers": "bytes", "mixed_environments": False, "model": "88" * 32,
            "data_root_before": joined(data_roots(before)).hex(), "data_root_mac_before": "99" * 16,
            "presence": proof_of(before, request).as_dict(),
        }  # fmt: skip
    return {
        "_type": STATEMENT, "predicateType": PREDICATE, "predicate": predicate,
        "subject": [{"name": "state", "digest": {"blake2b-256": digest("state", request).hex()}}],
    }  # fmt: skip


def rejected() -> dict[str, Any]:
    """The receipt of a request for which nothing was erased."""
    full = statement("r-sample", CLIENTS)
    predicate = {name: full["predicate"][name] for name in ("request", "chain", "form")}
    predicate["request"] |= {
        "state": "rejected",
        "pseudonym": None,
        "reason": "there is no such sample: \u00e9\U0001f600",
    }
    return {**full, "subject": [], "predicate": predicate}


def superseded() -> dict[str, Any]:
    """The receipt of an erasure, issued after a later change of the data."""
    full = statement("r-sample", CLIENTS)
    gone = dict.fromkeys(("target", "data_root_after", "absence", "data_root_before", "presence", "model"))
    return {**full, "subject": [], "predicate": {**full["predicate"], **gone, "superseded": True}}


def statements() -> dict[str, tuple[dict[str, Any], str | None]]:
    """Every statement by name, with the request whose opening opens it."""
    found: dict[str, tuple[dict[str, Any], str | None]] = {}
    data = CLIENTS
    for request, target in GONE.items():
        found[f"{request}, full"] = statement(request, data), request
        found[f"{request}, public"] = statement(request, data, public=True), request
        data = without(data, *target)
    found["rejected"] = rejected(), None
    found["superseded"] = superseded(), None
    return found


# A series of a rewritten record


def refused_series() -> list[dict[str, Any]]:
    """Receipts and links of a record that was rewritten at event 17, where the first receipt of the archive stands.

    Event 62 covers both histories: event 61 of the new one, and as its shortcut event 31 of the old one.
    """
    digests = [*DIGESTS[:17], *(digest("rewritten", number) for number in range(17, 63))]
    new = HASHES[:17]
    for number in range(17, 62):
        new.append(link(number, new[-1], new[shortcut_of(number)], digests[number]))
    both = link(62, new[61], HASHES[31], digests[62])

    first, second = statement("r-sample", CLIENTS), statement("r-text", CLIENTS)
    up = [[digests[61].hex(), new[46].hex()], [digests[62].hex(), HASHES[31].hex()]]
    previous = {"sequence": 60, "head": new[60].hex(), "steps": up}
    second["predicate"]["chain"] |= {"sequence": 62, "head": both.hex(), "previous": previous}

    def links(newer: int, steps: list[list[str]]) -> dict[str, Any]:
        made = [{"older": 17, "newer": newer, "steps": steps}]
        return {"format": "urn:fedforget:links:1", "run": HASHES[1].hex(), "links": made}

    envelopes = [seal(each, KEY) for each in (first, second)]
    return [
        {"name": name, "receipts": envelopes, "links": found}
        for name, found in {
            "a link to the newer receipt, by the old history": links(
                62, [*steps(31, 17), [digests[62].hex(), new[61].hex()]]
            ),
            "a link to the old history": links(60, steps(60, 17)),
        }.items()
    ]


# What must be refused, although the key signed it


Change = Callable[[dict[str, Any]], Any]


def _predicate(change: Change) -> Change:
    return lambda statement: change(statement["predicate"])


def _flip(text: str) -> str:
    return ("0" if text[0] != "0" else "1") + text[1:]


def _absence(change: Change) -> Change:
    return _predicate(lambda predicate: change(predicate["absence"]))


def _swap_paths(predicate: dict[str, Any]) -> None:
    predicate["absence"], predicate["presence"] = predicate["presence"], predicate["absence"]


def _shorten(path: dict[str, Any]) -> None:
    path["siblings"] = path["siblings"][:-1]


def _drop(bucket: list[Any]) -> None:
    bucket.pop()


PREVIOUS: dict[str, Any] = {"head": "00" * 32, "steps": []}
FORGED: dict[str, Change] = {
    "another root after": _predicate(lambda p: p.update(data_root_after=_flip(p["data_root_after"]))),
    "another root before": _predicate(lambda p: p.update(data_root_before=_flip(p["data_root_before"]))),
    "another label of the client": _predicate(lambda p: p["target"].update(client=_flip(p["target"]["client"]))),
    "another label of the sample": _predicate(lambda p: p["target"].update(sample=_flip(p["target"]["sample"]))),
    "no label of the sample": _predicate(lambda p: p["target"].update(sample=None)),
    "the paths exchanged": _predicate(_swap_paths),
    "absence where it was present": _predicate(
        lambda p: p.update(absence=p["presence"], data_root_after=p["data_root_before"])
    ),
    "presence where it is absent": _predicate(
        lambda p: p.update(presence=p["absence"], data_root_before=p["data_root_after"])
    ),
    "a path that is too short": _absence(lambda proof: _shorten(proof["client"])),
    "another sibling": _absence(lambda proof: proof["client"]["siblings"].__setitem__(0, "00" * 32)),
    "a sibling that is too short": _absence(lambda proof: proof["client"]["siblings"].__setitem__(0, "00" * 31)),
    "257 siblings": _absence(lambda proof: proof["client"].update(siblings=["00" * 32] * 257)),
    "a leaf left out": _absence(lambda proof: _drop(proof["sample"]["bucket"])),
    "a leaf twice": _absence(lambda proof: proof["sample"]["bucket"].append(proof["sample"]["bucket"][-1])),
    "leaves in another order": _absence(lambda proof: proof["sample"]["bucket"].reverse()),
    "a leaf of elsewhere": _absence(lambda proof: proof["sample"]["bucket"].append(["ff" * 32, "00" * 32])),
    "uppercase": _predicate(lambda p: p.update(data_root_after=p["data_root_after"].upper())),
    "blanks in a hash": _predicate(lambda p: p.update(data_root_after=p["data_root_after"] + " ")),
    "no path of the sample": _absence(lambda proof: proof.update(sample=None)),
    "no absence": _predicate(lambda p: p.update(absence=None)),
    "no target": _predicate(lambda p: p.update(target=None)),
    "no root": _predicate(lambda p: p.update(data_root_after=None)),
    "superseded, but proven": _predicate(lambda p: p.update(superseded=True)),
    "another class destroyed": _predicate(lambda p: p.update(destroyed_or_rewritten=[*DESTROYED, "backups"])),
    "backups within reach": _predicate(lambda p: p["out_of_reach"].update(unknown=[])),
    "another command": _predicate(lambda p: p.update(re_execute="true")),
    "an export without its MAC": _predicate(lambda p: p["out_of_reach"].update(exports=[{"time": "2027-01-31"}])),
    "a number for an id": _predicate(lambda p: p["request"].update(id=3)),
    "an earlier format": lambda statement: statement.update(predicateType="urn:fedforget:receipt:1"),
    "a previous receipt that is later": _predicate(lambda p: p["chain"].update(previous={**PREVIOUS, "sequence": 99})),
    "a previous receipt before the beginning": _predicate(
        lambda p: p["chain"].update(previous={**PREVIOUS, "sequence": -1})
    ),
    "a place beyond 2^63": _predicate(lambda p: p["chain"].update(sequence=2**63)),
}  # fmt: skip


def forged() -> dict[str, dict[str, Any]]:
    found = {}
    for name, change in FORGED.items():
        found[name] = copy.deepcopy(statement("r-sample", CLIENTS))
        change(found[name])
    return found


def openings() -> dict[str, Any]:
    """Openings that are none of the receipt of ``r-sample``, by what is wrong with them."""
    good = opening_of("r-sample").as_dict()

    def with_(level: str, **changes: Any) -> dict[str, Any]:
        return {**good, level: {**good[level], **changes}}

    return {
        "another client": with_("client", id=4), "another sample": with_("sample", id=15),
        "another salt of the client": with_("client", salt=_flip(good["client"]["salt"])),
        "another salt of the sample": with_("sample", salt=_flip(good["sample"]["salt"])),
        "a salt that is too short": with_("sample", salt="00" * 15), "no sample": {**good, "sample": None},
        "of another request": {**good, "request": "r-client"}, "more": {**good, "note": "approved"},
        "another format": {**good, "format": "urn:fedforget:opening:2"}, "no salt": {**good, "client": {"id": 3}},
        "a truth for an id": with_("sample", id=True), "a fraction for an id": with_("sample", id=14.0),
        "a negative id": with_("sample", id=-14), "a list": [good],
        "of a client": opening_of("r-client").as_dict(),
    }  # fmt: skip


# The file


def _salt(identifier: Id) -> bytes:
    return salts_of(TREE_KEY, IdSet([identifier]))[0]


def _label(identifier: Id) -> bytes:
    return labels_of(TREE_KEY, IdSet([identifier]))[0]


def vectors() -> dict[str, Any]:
    signed = {name: (seal(value, KEY), opened) for name, (value, opened) in statements().items()}
    ids: list[Id] = [0, 3, 2**63 - 1, "ward-7", "03"]
    keys = sample_key(TREE_KEY, id_block(3))
    return {
        "about": "Test vectors of receipt-format.md. Bytes are in hexadecimal.",
        "key": {
            "private": KEY.private_bytes_raw().hex(), "public": KEY.public_key().public_bytes_raw().hex(),
            "pem": public_pem(KEY.public_key()).decode(), "keyid": key_id(KEY.public_key()),
        },
        "tree": {
            "labels": [
                {"id": each, "block": id_block(each).hex(), "salt": _salt(each).hex(), "label": _label(each).hex()}
                for each in ids
            ],
            "values": [
                {"salt": salt.hex(), "content": content.hex(), "value": value_of(salt, content).hex()}
                for salt, content in [(salts_of(keys, IdSet([14]))[0], digest("content", 3, 14))]
            ],
            "trees": [
                {"leaves": [[one.hex(), other.hex()] for one, other in leaves], "root": root_of(leaves).hex()}
                for leaves in ([], sample_leaves(CLIENTS, 9), sample_leaves(CLIENTS, 3))
            ],
        },
        "chain": {
            "digests": [each.hex() for each in DIGESTS[1:]], "hashes": [each.hex() for each in HASHES[1:]],
            "shortcuts": [shortcut_of(number) for number in range(1, EVENTS + 1)],
            "proofs": [
                {"older": older, "newer": newer, "steps": steps(newer, older)}
                for older, newer in ((1, 2), (3, 3), (5, 31), (17, 60), (1, 60))
            ],
        },
        "receipts": [
            {
                "name": name, "envelope": envelope,
                "opening": None if opened is None else opening_of(opened).as_dict(),
            }
            for name, (envelope, opened) in signed.items()
        ],
        "refused receipts": [{"name": name, "envelope": seal(value, KEY)} for name, value in forged().items()],
        "refused openings of r-sample": [{"name": name, "opening": value} for name, value in openings().items()],
        "series": {"receipts": [f"{request}, full" for request in GONE]},
        "links from r-sample to r-text": {
            "format": "urn:fedforget:links:1", "run": HASHES[1].hex(),
            "links": [{"older": 17, "newer": 41, "steps": steps(41, 17)}],
        },
        "refused series": refused_series(),
    }  # fmt: skip


def text() -> str:
    return json.dumps(vectors(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
