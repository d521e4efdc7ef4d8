"""Verify a receipt of FedForget without FedForget: docs/receipt-format.md in Python, whose sections stand in brackets.

    python verify_receipt.py RECEIPT --key PUB [--opening FILE]     signature, shape, absence, presence

It needs no run, and imports only `cryptography` and the standard library. It exits with 13 if anything is refused.
`verify_series.py` beside it shows that several receipts lie in one chain of events.
"""

import argparse
import base64
import hashlib
import json
import re
import sys
from itertools import pairwise
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

P, L = 2**255 - 19, 2**252 + 27742317777372353535851937790883648493  # of Ed25519: the field, the order of the group
D = -121665 * pow(121666, -1, P) % P
Refused = ValueError


def hashed(person, *parts):
    return hashlib.blake2b(b"".join(parts), digest_size=32, person=person).digest()


def strict(data):  # [2] JSON without ambiguity
    text = data.decode("utf-8")
    depth, deepest = 0, 0
    for each in text:
        depth += (each in "{[") - (each in "}]")
        deepest = max(deepest, depth)
    if len(data) > 2**20 or text.startswith("\ufeff") or deepest > 32:
        raise Refused("too long, too deep, or a byte order mark")
    value = json.loads(text, object_pairs_hook=unique, parse_constant=lambda name: unique([(name, 0)] * 2))
    json.dumps(value, ensure_ascii=False).encode()  # raises for half a surrogate pair
    return value


def unique(pairs):
    if len(dict(pairs)) < len(pairs):
        raise Refused("a key is given twice, or a number is none")
    return dict(pairs)


def read_key(data):  # [3] one PEM block with a point of prime order in canonical encoding
    if not re.fullmatch(rb"\s*-----BEGIN ([A-Z0-9 ]+)-----[A-Za-z0-9+/=\s]+-----END \1-----\s*", data[: 2**16 + 1]):
        raise Refused("not one PEM block")
    key = load_pem_public_key(data)
    point = decoded(key.public_bytes_raw()) if isinstance(key, Ed25519PublicKey) else None
    if len(data) > 2**16 or point in (None, (0, 1)) or times(L, point) != (0, 1):
        raise Refused("a malformed or low-order key, or none of Ed25519")
    return key


def decoded(raw):
    sign, y = divmod(int.from_bytes(raw, "little"), 2**255)
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    x = x if (x * x - square) % P == 0 else x * pow(2, (P - 1) // 4, P) % P
    if y >= P or (x * x - square) % P or (x == 0 and sign):
        return None
    return (x if x & 1 == sign else P - x), y


def times(factor, point):
    result = (0, 1)
    while factor:
        result = plus(result, point) if factor & 1 else result
        point, factor = plus(point, point), factor >> 1
    return result


def plus(one, other):
    (a, b), (c, d) = one, other
    e = D * a * b * c * d % P
    return (a * d + b * c) * pow(1 + e, -1, P) % P, (b * d + a * c) * pow(1 - e, -1, P) % P


def unsealed(envelope, key):  # [3] DSSE
    if not fits(envelope, {"payloadType": str, "payload": str, "signatures": [{"keyid": str, "sig": str}]}):
        raise Refused("not an envelope")
    kind, payload = envelope["payloadType"], unbase64(envelope["payload"])
    message = b"DSSEv1 %d %s %d %s" % (len(kind.encode()), kind.encode(), len(payload), payload)
    signatures = [unbase64(each["sig"]) for each in envelope["signatures"]]
    if kind != "application/vnd.in-toto+json" or not any(signed(key, each, message) for each in signatures):
        raise Refused("the signature does not verify")
    statement = strict(payload)
    if json.dumps(statement, sort_keys=True, separators=(",", ":")).encode() != payload:
        raise Refused("the payload is not canonical")
    return statement


def unbase64(text):
    data = base64.b64decode(text, validate=True)
    if base64.b64encode(data).decode() != text:
        raise Refused("base64 is not canonical")
    return data


def signed(key, signature, message):
    try:
        key.verify(signature, message)
    except InvalidSignature:
        return False
    return True


def fits(value, shape):
    # a tuple: alternatives; a list: a list of these; a function: a condition; else a type or a value
    if isinstance(shape, tuple):
        return any(fits(value, each) for each in shape)
    if isinstance(shape, dict):
        return type(value) is dict and value.keys() == shape.keys() and all(fits(value[k], shape[k]) for k in shape)
    if isinstance(shape, list):
        return type(value) is list and all(fits(each, shape[0]) for each in value)
    if isinstance(shape, type):
        return type(value) is shape
    return shape(value) if callable(shape) else type(value) is type(shape) and value == shape


TEXT, NUMBER, TRUTH = (str, None), (int, None), (bool, None)  # [4] each may be null


def pair(value):
    return fits(value, [str]) and len(value) == 2


def texts(value):
    return type(value) is dict and all(type(each) is str for each in value.values())


PATH = {"siblings": [str], "bucket": [pair]}
PROOF = ({"client": PATH, "sample": (PATH, None)}, None)
REQUEST = {"id": str, "pseudonym": TEXT, "level": str, "basis": str, "state": str, "times": texts, "deadline": TEXT,
           "reason": TEXT}  # fmt: skip
PREVIOUS = ({"sequence": int, "head": str, "steps": [pair]}, None)
CHAIN = {"public": {"run": str, "head": str},
         "full": {"run": str, "head": str, "sequence": int, "previous": PREVIOUS}}  # fmt: skip
COMMAND = ("fedforget receipt verify FILE --key PUB --run RUN",
           "fedforget.Run(RUN, model=MODEL, data=DATA).check_receipt(fedforget.read_receipt(FILE, PUB))")  # fmt: skip
EXPORT = {"public": {"time": lambda text: type(text) is str and len(text) == 10},
          "full": {"time": lambda text: type(text) is str and len(text) != 10, "mac": str}}  # fmt: skip
SUBJECT = {"name": "state", "digest": {"blake2b-256": str}}


UNKNOWN = [["backups", "copies", "exports that were not noted"]]
UNKNOWN.append([*UNKNOWN[0], "messages that Flower keeps"])  # of clients on other machines


def erasure(form):
    common = {
        "counterfactual": {"plan": TEXT, "learner": TEXT, "commitments": TEXT, "rounds": NUMBER}, "state_mac": TEXT,
        "superseded": bool, "guarantee": TEXT, "seeds_tainted": TRUTH, "version": TEXT, "data_root_after": TEXT,
        "target": ({"client": str, "sample": TEXT}, None), "data_root_mac": TEXT, "absence": PROOF,
        "destroyed_or_rewritten": lambda value: value == ["logs", "metrics", "models", "rows", "temporary files"],
        "out_of_reach": {"exports": [EXPORT[form]],
                         "unknown": lambda value: value in UNKNOWN},
        "re_execute": COMMAND,
    }  # fmt: skip
    full = {
        "state_mac_before": TEXT, "first_changed_step": NUMBER, "recomputed_steps": NUMBER, "recomputed_rounds": NUMBER,
        "guarantee_covers": TEXT, "mixed_environments": TRUTH, "model": TEXT, "data_root_before": TEXT,
        "data_root_mac_before": TEXT, "presence": PROOF,
    }  # fmt: skip
    return common | (full if form == "full" else {})


def require_shape(statement):  # [4]
    predicate = statement["predicate"] if fits(statement, {"_type": "https://in-toto.io/Statement/v1", "subject": list,
                 "predicateType": "urn:fedforget:receipt:2", "predicate": dict}) else {}  # fmt: skip
    form = predicate.get("form")
    if form not in ("public", "full") or not fits(predicate.get("request"), REQUEST):
        raise Refused("not a receipt")
    purged = predicate["request"]["state"] == "purged"
    shape = {"request": REQUEST, "chain": CHAIN[form], "form": str} | (erasure(form) if purged else {})
    stands = not predicate.get("superseded", True)
    if not fits(predicate, shape) or not fits(statement["subject"], [SUBJECT]) or len(statement["subject"]) != stands:
        raise Refused("not the fields of a receipt")
    chain = predicate["chain"]
    places = [0, *([chain["previous"]["sequence"]] if chain.get("previous") else []), chain.get("sequence", 1), 2**63]
    nulls = {name for name, value in predicate.items() if value is None}
    if (
        any(one >= other for one, other in pairwise(places))
        or (purged and ("data_root_after" in nulls) == stands)
        or ("target" in nulls) != ("absence" in nulls)
        or ("data_root_after" in nulls and "absence" not in nulls)
        or ("data_root_before" in nulls) != ("presence" in nulls)
        or ("target" in nulls and form == "full" and "presence" not in nulls)
    ):
        raise Refused("its fields contradict each other")


def unhex(text, size=32):
    data = bytes.fromhex(text)
    if data.hex() != text or len(data) != size:
        raise Refused(f"not {size} bytes in lowercase hexadecimal")
    return data


def value_at(path, label, root, size):  # [5] the value of a label in the tree with this root; None if it is absent
    siblings = [unhex(each) for each in path["siblings"]]
    bucket = [(unhex(each), unhex(value, size)) for each, value in path["bucket"]]
    shift = 256 - len(siblings)
    prefix = {int.from_bytes(each, "big") >> shift for each in (label, *(each for each, _ in bucket))}
    ordered = all(one < other for (one, _), (other, _) in pairwise(bucket))
    if shift < 0 or len(bucket) > 16 or not ordered or len(prefix) != 1:
        raise Refused("a path is not one of a tree")
    found = hashed(b"fedforget/tree/1", b"\0", *(part for leaf in bucket for part in leaf))
    for depth in reversed(range(len(siblings))):
        right = label[depth // 8] >> (7 - depth % 8) & 1
        halves = (siblings[depth], found) if right else (found, siblings[depth])
        found = hashed(b"fedforget/tree/1", b"\1", *halves)
    if found != root:
        raise Refused("a path does not lead to its root")
    return dict(bucket).get(label)


def is_present(proof, target, root):  # [6]
    client = value_at(proof["client"], unhex(target["client"]), unhex(root), 64)
    if client is None or proof["sample"] is None or target["sample"] is None:
        if proof["sample"] is not None:
            raise Refused("the path of a sample leads nowhere")
        return client is not None
    return value_at(proof["sample"], unhex(target["sample"]), client[32:], 32) is not None


def require_opening(opening, predicate):  # [7]
    one = {"id": (int, str), "salt": str}
    if not fits(opening, {"format": "urn:fedforget:opening:1", "request": str, "client": one, "sample": (one, None)}):
        raise Refused("not an opening")
    if predicate.get("target") is None or opening["request"] != predicate["request"]["id"]:
        raise Refused("the receipt has no proof to open, or the opening belongs to another")
    for level in ("client", "sample"):
        label = opening[level] and hashed(b"fedforget/tree/1", b"\2", unhex(opening[level]["salt"], 16),
                                          block(opening[level]["id"])).hex()  # fmt: skip
        if label != predicate["target"][level]:
            raise Refused(f"the id or the salt of the {level} is not that of the receipt")


def block(identifier):
    text = str(identifier)
    if re.fullmatch("0|[1-9][0-9]{0,18}", text, re.ASCII) and int(text) < 2**63:
        return int(text).to_bytes(16, "big")
    if type(identifier) is int:
        raise Refused("not an id")
    return b"\1" + hashlib.blake2b(text.encode(), digest_size=15, person=b"fedforget/id/1").digest()


def verify(data, key, opening=None):
    """Return the statement of a receipt whose signature, shape, proofs and opening are sound; else raise."""
    statement = unsealed(strict(data), key)
    require_shape(statement)
    predicate = statement["predicate"]
    if predicate.get("absence") and is_present(predicate["absence"], predicate["target"], predicate["data_root_after"]):
        raise Refused("the target is in the data after the request")
    if predicate.get("presence") and not is_present(
        predicate["presence"], predicate["target"], predicate["data_root_before"]
    ):
        raise Refused("the target is not in the data before the request")
    if opening is not None:
        require_opening(strict(opening), predicate)
    return statement


def main(arguments=None):
    parser = argparse.ArgumentParser(description="Verify a receipt of FedForget, offline.")
    parser.add_argument("receipt", type=Path)
    parser.add_argument("--key", required=True, type=Path)
    parser.add_argument("--opening", type=Path)
    given = parser.parse_args(arguments)
    try:
        opening = given.opening and given.opening.read_bytes()
        statement = verify(given.receipt.read_bytes(), read_key(given.key.read_bytes()), opening)
    except (ValueError, TypeError, RecursionError, UnsupportedAlgorithm) as error:
        print(f"refused: {error}", file=sys.stderr)
        return 13
    predicate = statement["predicate"]
    proven = [name for name in ("absence", "presence") if predicate.get(name)]
    print(predicate["request"]["id"], predicate["request"]["state"], "signature", *proven)
    return 0


if __name__ == "__main__":
    sys.exit(main())
