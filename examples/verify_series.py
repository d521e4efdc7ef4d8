"""Verify that receipts of FedForget lie in one chain of events, without FedForget: section 8 of docs/receipt-format.md.

    python verify_series.py RECEIPT RECEIPT … --key PUB [--links FILE]

It needs no run, and imports only `verify_receipt.py` beside it, `cryptography` and the standard library. It exits with
13 if anything is refused.
"""

import argparse
import sys
from itertools import pairwise
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from verify_receipt import Refused, fits, hashed, pair, read_key, strict, unhex, verify


def shortcut(sequence):
    rest = part = sequence
    while rest:
        part = (1 << (rest + 1).bit_length() - 1) - 1
        rest -= part
    return sequence - part


def follow(older, found, newer, steps):
    way = []
    while newer > older:
        way.append((newer, shortcut(newer) >= older))
        newer = shortcut(newer) if way[-1][1] else newer - 1
    if len(way) != len(steps):
        raise Refused("a link has another number of steps than its way")
    for (each, short), (digest, beside) in zip(reversed(way), steps, strict=True):
        covered = (unhex(beside), found) if short else (found, unhex(beside))
        found = hashed(b"fedforget/link/1", each.to_bytes(8, "big"), *covered, unhex(digest))
    return found


def verify_series(statements, links=None):
    """Raise unless each of these full receipts continues the one before it."""
    chains = [each["predicate"]["chain"] for each in statements if each["predicate"]["form"] == "full"]
    chains.sort(key=lambda chain: chain["sequence"])
    known = read_links(links)
    if len(chains) < len(statements) or len({unhex(chain["run"]) for chain in chains}) > 1:
        raise Refused("a receipt is public, or of another run")
    for chain in chains:
        last = chain["previous"]
        way = last and (last["sequence"], unhex(last["head"]), chain["sequence"], last["steps"])
        if last and follow(*way) != unhex(chain["head"]):
            raise Refused("a receipt does not prove that it continues the one before it")
    for older, newer in pairwise(chains):
        place, last = (older["sequence"], older["head"]), newer["previous"] or {"sequence": 0}
        if place[0] == newer["sequence"] and place[1] == newer["head"]:
            continue
        if place[0] >= newer["sequence"] or last["sequence"] < place[0]:
            raise Refused("two receipts contradict each other: the record was rewritten")
        if last["sequence"] == place[0]:
            if last["head"] != place[1]:
                raise Refused("a receipt continues another one than the archive has: the record was rewritten")
            continue
        steps = known.get((newer["run"], place[0], last["sequence"]), [])
        if follow(place[0], unhex(place[1]), last["sequence"], steps) != unhex(last["head"]):
            raise Refused("a link does not lead from one receipt to the next")


def read_links(data):
    link = {"older": int, "newer": int, "steps": [pair]}
    if data is None:
        return {}
    raw = strict(data)
    if not fits(raw, {"format": "urn:fedforget:links:1", "run": str, "links": [link]}):
        raise Refused("not a file of links")
    return {(raw["run"], each["older"], each["newer"]): each["steps"] for each in raw["links"]}


def main(arguments=None):
    parser = argparse.ArgumentParser(description="Verify that receipts of FedForget lie in one chain, offline.")
    parser.add_argument("receipts", nargs="+", type=Path)
    parser.add_argument("--key", required=True, type=Path)
    parser.add_argument("--links", type=Path)
    given = parser.parse_args(arguments)
    try:
        key = read_key(given.key.read_bytes())
        statements = [verify(file.read_bytes(), key) for file in given.receipts]
        verify_series(statements, given.links and given.links.read_bytes())
    except (ValueError, TypeError, RecursionError, UnsupportedAlgorithm) as error:
        print(f"refused: {error}", file=sys.stderr)
        return 13
    print(len(statements), "receipts in one chain of events")
    return 0


if __name__ == "__main__":
    sys.exit(main())
