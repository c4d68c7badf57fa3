"""Records and prompt lists: the exact schema, strict reading (P50), and contradictions (R3, B6, R9)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.sample_record import sample_record

from gemma4web.errors import RecordError, UsageError
from gemma4web.files import dump_json, sha256_bytes
from gemma4web.record import parse_prompts, parse_record, read_prompts, read_record, write_record

Edit = Callable[[dict[str, Any]], object]


def parse(document: Any) -> object:
    return parse_record(json.dumps(document).encode(), "run.json")


def test_a_record_survives_the_round_trip(tmp_path: Path) -> None:
    record = parse_record(json.dumps(sample_record()).encode(), "run.json")
    path = tmp_path / "records" / "run.json"
    write_record(path, record)
    assert read_record(path) == record
    assert path.read_text() == dump_json(sample_record())


def test_the_schema_is_the_published_one() -> None:
    """Every field of the schema is there, and leaving any one out is refused."""
    document = sample_record()
    for place in ([], ["browser"], ["adapter"], ["runs", 4], ["runs", 4, "mtp"], ["runs", 4, "passes"], ["runs", 2, "profile"],
                  ["runs", 2, "profile", "kernels", 0]):
        for key in _at(document, place):
            broken = sample_record()
            del _at(broken, place)[key]
            with pytest.raises(RecordError):
                parse(broken)


def _at(document: Any, place: list[Any]) -> dict[str, Any]:
    for step in place:
        document = document[step]
    assert isinstance(document, dict)
    return document


def run(document: dict[str, Any], variant: str) -> dict[str, Any]:
    found = next(run for run in document["runs"] if run["variant"] == variant)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(("edit", "says"), [
    (lambda d: d.update(schema=2), "schema 2, wanted 1"),
    (lambda d: d.update(schema=True), "schema True"),
    (lambda d: d.update(schema="1"), "schema '1'"),
    (lambda d: d.update(extra=1), "unknown field"),
    (lambda d: d.update(bundle_sha256="A" * 64), "bundle_sha256"),
    (lambda d: d.update(bundle_sha256="a" * 63), "bundle_sha256"),
    (lambda d: d.update(runs=[]), "there is no run"),
    (lambda d: d["adapter"].update(software=False), "not labelled software"),
    (lambda d: d["adapter"].update(software=1), "software"),
    (lambda d: d["runs"].append(dict(d["runs"][0])), "there twice"),
    (lambda d: run(d, "plain-wall").update(variant="plain"), "names no variant"),
    (lambda d: run(d, "plain-wall").update(tokens=["5"]), "tokens"),
    (lambda d: run(d, "plain-wall").update(tokens=[-1, 2]), "tokens"),
    (lambda d: run(d, "plain-wall").update(tokens=[1.0, 2]), "tokens"),
    (lambda d: run(d, "plain-wall").update(prefill_ms=-1.0), "prefill_ms"),
    (lambda d: run(d, "plain-wall").update(prefill_ms="1"), "prefill_ms"),
    (lambda d: run(d, "plain-wall").update(heap_bytes=0), "heap_bytes"),
    (lambda d: run(d, "plain-wall").update(tokens=[5]), "1 tokens and yet a decode rate"),
    (lambda d: run(d, "plain-wall").update(prompt_tokens=9), "prompt tokens"),
    (lambda d: run(d, "plain-wall").update(mtp=run(d, "mtp-wall")["mtp"]), "MTP counters on a plain variant"),
    (lambda d: run(d, "mtp-wall").update(mtp=None), "lacks its MTP counters"),
    (lambda d: run(d, "plain-wall").update(profile=run(d, "plain-profile")["profile"]), "profile from a wall build"),
    (lambda d: run(d, "plain-profile")["profile"]["kernels"].append({"name": "rms_norm", "calls": 1, "total_ns": 1}), "twice"),
    (lambda d: run(d, "plain-profile")["profile"]["kernels"][0].update(calls=0), "calls"),
    (lambda d: run(d, "plain-wall")["passes"].update(reason="why"), "a reason against them"),
    (lambda d: run(d, "mtp-wall").update(passes={"single": False, "reason": ""}), "lacks the reason"),
    (lambda d: run(d, "mtp-profile").update(passes={"single": True, "reason": ""}), "times of each dispatch in one"),
    (lambda d: run(d, "mtp-wall")["mtp"].update(drafted=3), "3 drafted in 2 rounds"),
    (lambda d: run(d, "mtp-wall")["mtp"].update(accepted=5), "5 accepted of 4 drafted"),
    (lambda d: run(d, "mtp-wall")["mtp"].update(emitted=5), "5 emitted and 4 tokens"),
    (lambda d: run(d, "mtp-wall")["mtp"].update(cut=0), "breaks emitted = 1"),
    (lambda d: run(d, "mtp-wall")["tokens"].append(9), "4 emitted and 5 tokens"),
])
def test_what_cannot_be_true_is_refused(edit: Edit, says: str) -> None:
    document = sample_record()
    edit(document)
    with pytest.raises(RecordError, match=says):
        parse(document)


@pytest.mark.parametrize(("text", "says"), [
    (b"\xef\xbb\xbf{}", "byte order mark"), (b"{}", "schema None"), (b"[]", "schema 'list'"), (b"", "not JSON"),
    (b'{"schema": 1, "schema": 1}', "twice"), (b'{"schema": NaN}', "NaN"), (b'{"schema": 1e400}', "1e400"),
    ('{"schema": 1}'.encode("utf-16"), "UTF-8"), (b'{"schema": 1} x', "not JSON"), (b'{"a": "\\ud800"}', "not JSON"),
    (b"[" * 100_000, "not JSON"),
])
def test_bytes_that_readers_could_read_differently(text: bytes, says: str) -> None:
    """P50: duplicate keys, marks, other encodings, numbers out of range, trailing data, half surrogates, deep nesting."""
    with pytest.raises(RecordError, match=says):
        parse_record(text, "run.json")


def test_writing_a_contradiction_leaves_the_old_record(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text("old")
    honest = parse_record(json.dumps(sample_record()).encode(), "run.json")
    import msgspec
    with pytest.raises(RecordError, match="there is no run"):
        write_record(path, msgspec.structs.replace(honest, runs=[]))
    assert path.read_text() == "old"


def test_a_missing_record_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"(?s)run\.json cannot be read.*scons run"):
        read_record(tmp_path / "run.json")


def test_prompts_carry_the_hash_of_their_bytes() -> None:
    data = b'[{"id": "a", "tokens": [1], "max_new_tokens": 4}, {"id": "b", "text": "hi", "max_new_tokens": 1}]'
    found = parse_prompts(data, "p.json")
    assert found.sha256 == sha256_bytes(data)
    assert [(p.id, p.tokens, p.text, p.max_new_tokens) for p in found.prompts] == [("a", [1], None, 4), ("b", None, "hi", 1)]


def test_prompts_are_not_read_from_a_device_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gemma4web.record.MOST_PROMPT_BYTES", 1 << 16)
    with pytest.raises(UsageError, match="/dev/zero has more than 65536 bytes"):
        read_prompts(Path("/dev/zero"))


@pytest.mark.parametrize(("text", "says"), [
    ('[]', "an empty list"), ('{}', "dict"), ('null', "NoneType"), ('[1]', "entry 1"), ('nonsense', "not JSON"),
    ('[{"tokens": [1], "max_new_tokens": 1}]', "`id`"),
    ('[{"id": "", "tokens": [1], "max_new_tokens": 1}]', "id"),
    ('[{"id": "a", "tokens": [1]}]', "max_new_tokens"),
    ('[{"id": "a", "tokens": [1], "max_new_tokens": 0}]', "max_new_tokens"),
    ('[{"id": "a", "tokens": [1], "max_new_tokens": 1.5}]', "max_new_tokens"),
    ('[{"id": "a", "tokens": [1], "max_new_tokens": true}]', "max_new_tokens"),
    ('[{"id": "a", "tokens": [1], "max_new_tokens": 1000001}]', r"entry 1: .*<= 1000000.*max_new_tokens"),
    ('[{"id": "a", "tokens": [1], "max_new_tokens": 4294967297}]', r"entry 1: .*max_new_tokens"),
    ('[{"id": "a", "tokens": [1], "max_new_tokens": 1}, {"id": "b", "tokens": [5, 2147483648], "max_new_tokens": 1}]',
     r"entry 2: .*<= 2147483647.*tokens\[1\]"),
    ('[{"id": "a", "tokens": [18446744073709551617], "max_new_tokens": 1}]', r"entry 1: .*tokens"),
    ('[{"id": "a", "max_new_tokens": 1}]', "neither of `tokens` and `text`"),
    ('[{"id": "a", "tokens": [1], "text": "x", "max_new_tokens": 1}]', "both of `tokens` and `text`"),
    ('[{"id": "a", "tokens": [], "max_new_tokens": 1}]', "is empty"),
    ('[{"id": "a", "text": "  ", "max_new_tokens": 1}]', "is empty"),
    ('[{"id": "a", "tokens": [-1], "max_new_tokens": 1}]', "tokens"),
    ('[{"id": "a", "tokens": ["1"], "max_new_tokens": 1}]', "tokens"),
    ('[{"id": "a", "tokens": [1], "max_new_tokens": 1, "max_tokens": 2}]', "max_tokens"),
    ('[{"id": "a", "tokens": [1], "max_new_tokens": 1}, {"id": "a", "tokens": [2], "max_new_tokens": 1}]', "'a' twice"),
    ('[{"id": "a", "id": "b", "tokens": [1], "max_new_tokens": 1}]', "twice"),
])
def test_a_wrong_prompt_list_names_the_entry(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        parse_prompts(text.encode(), "p.json")
    assert "p.json" in str(caught.value)


def test_the_largest_numbers_that_the_runtime_takes() -> None:
    """R6: budget and ids are i32 in the page: the bounds themselves are met, and nothing wraps to a small number."""
    data = b'[{"id": "a", "tokens": [0, 2147483647], "max_new_tokens": 1000000}]'
    found, = parse_prompts(data, "p.json").prompts
    assert (found.tokens, found.max_new_tokens) == ([0, 2147483647], 1_000_000)


def test_a_missing_prompt_file_says_what_one_holds(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"(?s)cannot be read.*max_new_tokens"):
        read_prompts(tmp_path / "p.json")
