"""Files of requests, one JSON object a line. Errors name the file and the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedforget.algorithm.forget import Request
from fedforget.errors import InvalidRequests
from fedforget.requests.request_file import read_requests

GOOD = '{"client": 3, "sample": 17}'


def request_file(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "requests.jsonl"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_every_line_is_read_as_a_request(tmp_path: Path) -> None:
    lines = [
        GOOD,
        '{"client": 5}',
        "",
        '{"sample": "03", "client": "ward-7"}',
        "   ",
        '  {"client": "3", "sample": "17"}  ',
        '{"client": "é", "sample": "\\u0663"}',
        '{"client": "", "sample": 9223372036854775807}',
    ]
    assert read_requests(request_file(tmp_path, "\n".join(lines))) == [
        Request(3, 17),
        Request(5),
        Request("ward-7", "03"),
        Request(3, 17),
        Request("é", "٣"),
        Request("", 2**63 - 1),
    ]


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_line_endings_do_not_matter(tmp_path: Path, ending: str) -> None:
    assert read_requests(request_file(tmp_path, GOOD + ending + GOOD + ending)) == [Request(3, 17)] * 2


@pytest.mark.parametrize("text", ["", "\n", "\n \n"])
def test_empty_file_has_no_requests(tmp_path: Path, text: str) -> None:
    assert read_requests(request_file(tmp_path, text)) == []


@pytest.mark.parametrize("inside", ["\u2028", "\u2029", "\x85"], ids=["line separator", "paragraph separator", "NEL"])
def test_unicode_line_separator_inside_an_id_does_not_end_the_line(tmp_path: Path, inside: str) -> None:
    """JSON allows these characters unescaped in a string, so an id may contain them."""
    path = request_file(tmp_path, f'{{"client": "a{inside}b"}}\n{GOOD}\n')
    assert read_requests(path) == [Request(f"a{inside}b"), Request(3, 17)]


BAD = [
    "client 3",
    "{",
    "[3, 17]",
    "3",
    "null",
    '"client"',
    "{}",
    '{"sample": 17}',
    '{"client": 3, "row": 17}',
    '{"client": 3, "sample": 17, "basis": "exogenous"}',
    '{"client": null}',
    '{"client": 3, "sample": null}',
    '{"client": 3.0}',
    '{"client": true}',
    '{"client": -1}',
    '{"client": 9223372036854775808}',
    '{"client": [3]}',
    '{"client": {"id": 3}}',
    '{"client": 3, "sample": false}',
    '{"client": NaN}',
    '{"client": "\\ud800"}',
    '{"client": 3, "sample": "\\udfff"}',
    '{"client": 3} {"client": 4}',
    '{"client": ' + "1" * 5000 + "}",
    "[" * 100_000,
]


@pytest.mark.parametrize("line", BAD, ids=lambda line: line[:40])
@pytest.mark.parametrize("number", [1, 4])
def test_malformed_line_raises_invalid_requests_with_its_number(tmp_path: Path, line: str, number: int) -> None:
    lines = [GOOD, "", GOOD, GOOD, GOOD]
    lines[number - 1] = line
    path = request_file(tmp_path, "\n".join(lines))
    with pytest.raises(InvalidRequests) as refused:
        read_requests(path)
    assert f"{path}, line {number}" in refused.value.message
    assert refused.value.hint


def test_missing_file_or_directory_raises_invalid_requests(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequests, match=r"nothing\.jsonl"):
        read_requests(tmp_path / "nothing.jsonl")
    with pytest.raises(InvalidRequests, match="cannot read"):
        read_requests(tmp_path)


def test_file_that_is_not_utf8_raises_invalid_requests(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequests, match="not UTF-8"):
        read_requests(request_file(tmp_path, b'{"client": "\xff"}'))
