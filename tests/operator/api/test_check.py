"""`octavo-operator check` finds without a cluster what the API server would refuse, also in hostile files."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from octavo_operator.api.manifest import dump, load
from octavo_operator.api.resource import InvalidLLMServiceError, parse, parse_stored
from octavo_operator.cli import main
from tests.operator.bad_llmservices import BAD, FROM_A_TEMPLATE, GONE, VALID, Bad, merged
from tests.operator.golden import inputs


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.id)
def test_refuses_with_path_and_sentence(bad: Bad) -> None:
    with pytest.raises(InvalidLLMServiceError) as refusal:
        parse(bad.manifest)
    problems = refusal.value.problems
    assert any(problem.path == bad.path and bad.words in problem.message for problem in problems), problems


def test_the_table_is_long_enough_and_its_base_is_valid() -> None:
    assert len(BAD) >= 30
    assert parse(VALID).name == "good"


@pytest.mark.parametrize("path", inputs().values(), ids=list(inputs()))
def test_accepts_every_sample_and_golden_input(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(path)]) == 0
    assert "is valid" in capsys.readouterr().out


@pytest.mark.parametrize("given", [b"", b"\xff", dump(VALID).encode()], ids=["empty", "not text", "valid"])
def test_a_hyphen_stands_for_standard_input(
    given: bytes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
    assert main(["check", "-"]) == (0 if b"LLMService" in given else 2)
    said = capsys.readouterr()
    assert said.out == ("-: LLMService good is valid\n" if b"LLMService" in given else "")
    assert said.err.count("\n") == 1 - said.out.count("\n")


@pytest.mark.parametrize("interval", ["1m", "60s", "0h0m59s", "5s"])
def test_accepts_a_scrape_within_a_minute(interval: str) -> None:
    assert parse(merged(VALID, {"spec": {"monitoring": {"interval": interval}}})).spec.monitoring.interval == interval


@pytest.mark.parametrize(
    ("pod", "code"),
    [
        ({"terminationGracePeriodSeconds": 9}, 2),
        ({"terminationGracePeriodSeconds": 10}, 0),
        ({"terminationGracePeriodSeconds": 9, "containers": [{"name": "engine", "lifecycle": None}]}, 0),
        ({"terminationGracePeriodSeconds": None}, 0),
        ({"$patch": "delete"}, 0),  # what follows is for the API server to refuse
        ({"containers": "engine"}, 0),
        ({"containers": [{"name": ["x"], "lifecycle": {"preStop": {"sleep": {"seconds": 10}}}}]}, 0),
        ({"containers": [None, {"name": "engine", "lifecycle": {"preStop": {"sleep": {"seconds": "10"}}}}]}, 0),
    ],
)
def test_says_that_pods_have_no_time_for_their_pause_before_the_api_server_does(
    pod: dict[str, Any], code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "short.yaml"
    file.write_text(yaml.safe_dump(merged(VALID, {"spec": {"podTemplate": {"spec": pod}}})))
    assert main(["check", str(file)]) == code
    said = capsys.readouterr().err
    assert (f"{file}: spec.podTemplate.spec.terminationGracePeriodSeconds: 9 is less than the 10 s" in said) is bool(
        code
    )


def test_a_quantity_too_large_for_kubernetes_counts_as_the_largest_there_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "large.yaml"
    source = {"demo": GONE, "s3": {"bucket": "models"}}
    for size in ("1e5000", "1e1000000"):
        file.write_text(dump(merged(VALID, {"spec": {"model": {"source": source}, "cache": {"size": size}}})))
        assert main(["render", str(file)]) == 0
        assert f"--max-size={2**63 - 1}" in capsys.readouterr().out


def test_an_adapter_may_have_the_llmservices_name_where_the_model_has_another() -> None:
    adapter = {"name": VALID["metadata"]["name"], "source": {"demo": "smollm2"}}
    assert parse(merged(VALID, {"spec": {"model": {"name": "llama"}, "adapters": [adapter]}})).served_name == "llama"


def test_says_all_problems_of_a_file_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bad.yaml"
    wrong = {"metadata": {"name": "A_B"}, "spec": {"replicas": -1, "engine": {"dtype": "int3"}, "what": 1}}
    file.write_text(yaml.safe_dump(merged(VALID, wrong)))
    assert main(["check", str(file)]) == 2
    said = capsys.readouterr().err
    paths = ("metadata.name", "spec.replicas", "spec.engine.dtype", "spec.what")
    assert all(f"{file}: {path}: " in said for path in paths)


UNKNOWN = {
    "spec": {
        "future": {"a": 1},
        "engine": {"future": [1]},
        "adapters": [{"name": "a", "source": {"demo": "smollm2", "future": 1}, "future": 2}],
        "podTemplate": {"spec": {"theirs": 1}},
    }
}


def test_what_the_api_server_holds_is_read_as_far_as_it_is_known() -> None:
    """A file is refused for the same."""
    newer = merged(VALID, UNKNOWN)
    reading = parse_stored(newer)
    paths = ["spec.future", "spec.engine.future", "spec.adapters[0].source.future", "spec.adapters[0].future"]
    assert sorted(reading.unknown) == sorted(paths)
    known = merged(VALID, {"spec": {"adapters": [{"name": "a", "source": {"demo": "smollm2"}}]}})
    known["spec"]["podTemplate"] = UNKNOWN["spec"]["podTemplate"]
    assert reading.service == parse(known)
    with pytest.raises(InvalidLLMServiceError) as refusal:
        parse(newer)
    assert sorted(problem.path for problem in refusal.value.problems) == sorted(paths)


def with_repository(repository: Any) -> dict[str, Any]:
    hub = {"repository": repository, "tokenSecretRef": {"name": "hub", "key": "token"}}
    adapters = [{"name": "sql", "source": {"demo": "smollm2"}}, {"name": "tagged", "source": {"huggingFace": hub}}]
    return merged(VALID, {"spec": {"adapters": adapters}})


def test_an_adapter_with_a_tag_that_an_older_crd_let_in_is_read_as_it_is() -> None:
    service = parse_stored(with_repository("owner/name:Q4")).service
    tagged = service.spec.adapters[1].source.hugging_face
    assert tagged is not None and tagged.repository == "owner/name:Q4"
    assert "'owner/name:Q4' must be written owner/name, without a tag" in tagged.problem
    assert tagged.token_secret_ref is not None, "what the pods need of it stays the same"
    right = parse_stored(with_repository("owner/name")).service.spec.adapters[1].source.hugging_face
    assert right is not None and right.problem == ""
    wrong = merged(with_repository("owner/name:Q4"), {"spec": {"replicas": -1}})
    with pytest.raises(InvalidLLMServiceError, match=r"spec\.replicas: .*; spec\.adapters\[1\]\.source.*without a tag"):
        parse_stored(wrong)
    with pytest.raises(InvalidLLMServiceError, match=r"repository: must be a string"):
        parse_stored(with_repository({"a": 1}))


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"replcas": 2}, "spec.replcas: is not a field of an LLMService, did you mean replicas?"),
        ({"engine": {"maxModelLen": 9}}, "spec.engine.maxModelLen: is not a field of an LLMService, did you mean max"),
        ({"engine": {"env": [{"nam": "A"}]}}, "spec.engine.env[0].nam: is not a field of an LLMService, did you mean"),
        ({"zzz": 1}, "spec.zzz: is not a field of an LLMService"),
    ],
)
def test_a_misspelt_field_is_reported_with_the_one_that_was_meant(spec: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidLLMServiceError) as refusal:
        parse(merged(VALID, {"spec": spec}))
    problems = [str(problem) for problem in refusal.value.problems]
    assert any(each.startswith(said) for each in problems), problems
    assert ("did you mean" in " ".join(problems)) is ("did you mean" in said)


@pytest.mark.parametrize(
    ("argument", "meant"),
    [
        ("--max-num-seq=4", "; did you mean --max-num-seqs, which is spec.engine.maxConcurrentRequests?"),
        ("--block-sise=32", "; did you mean --block-size?"),
        ("--port=9000", ""),  # a flag of the engine, and not for here
        ("--make-it-fast", ""),
    ],
)
def test_a_misspelt_flag_is_reported_with_the_one_that_was_meant(argument: str, meant: str) -> None:
    with pytest.raises(InvalidLLMServiceError) as refusal:
        parse(merged(VALID, {"spec": {"engine": {"extraArgs": [argument]}}}))
    (problem,) = refusal.value.problems
    assert "allowed are --" in problem.message
    assert problem.message.partition("no-vllm-metrics, --watchdog-timeout")[2] == meant


def test_a_misspelt_field_is_reported_before_the_one_that_is_missing_for_it() -> None:
    spec = merged(VALID, {"spec": {"model": GONE, "modle": VALID["spec"]["model"], "replicas": "two"}})
    with pytest.raises(InvalidLLMServiceError) as refusal:
        parse(spec)
    assert [str(problem) for problem in refusal.value.problems] == [
        "spec.modle: is not a field of an LLMService, did you mean model?",
        "spec.model: is required",
        "spec.replicas: 'two' must be a whole number",
    ]


def test_what_is_wrong_beside_an_unknown_field_is_reported_with_it() -> None:
    with pytest.raises(InvalidLLMServiceError, match=r"spec\.replicas: .*; spec\.future: is not a field"):
        parse_stored(merged(VALID, {"spec": {"replicas": -1, "future": 1}}))


BOMB = (
    "a: &a ["
    + "x," * 9
    + "x]\n"
    + "".join(f"{b}: &{b} [" + f"*{a}," * 9 + f"*{a}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True))
)

HEAD = b"apiVersion: octavo.dev/v1alpha1\n"
HOSTILE = [
    ("alias bomb", BOMB.encode(), "counting what its aliases stand for"),
    ("alias of itself", b"a: &a {b: *a}", "has no finished anchor"),
    ("tabs", b"spec:\n\tmodel: x", "a tab is used to indent"),
    ("duplicate keys", b"kind: LLMService\nkind: LLMService", "the key 'kind' appears twice"),
    ("duplicate keys deep inside", b"spec: {model: {source: {demo: a, demo: b}}}", "the key 'demo' appears twice"),
    ("a list", b"- 1\n- 2", "is a list, not a mapping"),
    ("a string", b"hello", "is a string, not a mapping"),
    ("nothing", b"", "holds no LLMService"),
    ("only comments", b"# none\n---\n---\n", "holds no LLMService"),
    ("huge", b"a: " + b"x" * (1 << 20), "larger than 1 MiB"),
    ("deep", b"a: " + b"[" * 50_000, "nested more than 64 levels"),
    ("wide", b"a: [" + b"1," * 60_000 + b"1]", "more than 50000 values"),
    ("binary", bytes(range(256)), "is not a text file"),
    ("control characters", b"a: \x00", "special characters are not allowed"),
    ("a Python object", b"a: !!python/object/apply:os.system ['true']", "is a tag"),
    ("a Python name", b"!!python/name:os.system {}", "is a tag"),
    ("base64 of YAML's own", b"a: !!binary aGk=", "is a tag"),
    ("a number as key", b"1: 2", "the key 1 is not a string"),
    ("no number", b"apiVersion: .nan", "JSON cannot hold"),
    ("endless digits", b"a: " + b"9" * 5000, "JSON cannot hold"),
    ("half a character", b'a: "\\ud800"', "unpaired UTF-16 surrogate"),
    ("no kind", b"apiVersion: octavo.dev/v1alpha1\nmetadata: {name: a}\nspec: {}", "kind: is required"),
    ("a misspelt kind", HEAD + b"kind: LLMservice\nmetadata: {name: a}", "'LLMservice' is not LLMService"),
    (
        "another version",
        b"apiVersion: octavo.dev/v2\nkind: LLMService\nmetadata: {name: a}",
        "is not octavo.dev/v1alpha1",
    ),
    ("other kinds only", b"apiVersion: v1\nkind: Secret", "holds no LLMService"),
    ("unfinished", b"a: {b: [", "line 1"),
    ("indented too far", b"a:\n  b: {c: 1}\n   d: 1", "line 3: 3 spaces before this, and 2 before what it should"),
    ("indented too little", b"a:\n  b: 1\n c: 1", "line 3: 1 spaces before this, and 0 before what it should"),
    ("an open bracket", b"a: {b: c\nd: 1", "line 2: the bracket that opens on line 1 is not closed"),
    ("an open quote", b"a: 'b\nc: 1", "the quote that opens on line 1 is not closed"),
    ("a quote too many", b"a: 'it's'", "line 1: expected <block end>"),
    ("a bracket too many", b"key: [a, b]]", "line 1: expected <block end>"),
    ("an item among fields", b"a: 1\n- b", "line 2: expected <block end>"),
    ("a colon too many", b"a: b: c", "line 1: there is one ':' too many"),
    ("no colon", b"a: 1\nspec\n  b: 1", "line 3: this is no 'field: value'"),
    (
        "two documents, one bad",
        yaml.safe_dump_all([VALID, merged(VALID, {"spec": {"replicas": -3}})]).encode(),
        "document 2: spec.replicas",
    ),
    (
        "a List as kubectl get writes it, one item bad",
        yaml.safe_dump(
            {"kind": "List", "apiVersion": "v1", "items": [VALID, merged(VALID, {"kind": "LLMSvc"})]}
        ).encode(),
        "item 2: kind: 'LLMSvc' is not LLMService",
    ),
    ("an empty List", b"apiVersion: v1\nkind: List\nitems: []", "holds no LLMService"),
]


@pytest.mark.parametrize(("content", "words"), [row[1:] for row in HOSTILE], ids=[row[0] for row in HOSTILE])
def test_hostile_files_are_refused_in_a_sentence(
    content: bytes, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "hostile.yaml"
    file.write_bytes(content)
    assert main(["check", str(file)]) == 2
    assert words in capsys.readouterr().err


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(tmp_path / "none.yaml"), str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "No such file or directory" in said
    assert "Is a directory" in said


def test_other_kinds_beside_an_llmservice_are_passed_over_aloud(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mixed.yaml"
    file.write_text("apiVersion: v1\nkind: Secret\nmetadata: {name: hf}\n---\n" + yaml.safe_dump(VALID))
    assert main(["check", str(file)]) == 0
    assert "skipped: document 1: Secret" in capsys.readouterr().err


def test_dates_and_times_stay_the_strings_that_kubernetes_sees(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "dates.yaml"
    file.write_text(yaml.safe_dump(VALID).replace("good", "good\n  labels: {since: 2026-01-01, at: 12:30}"))
    assert main(["check", str(file)]) == 0


def test_nulls_and_whole_numbers_with_an_exponent_are_read_as_the_api_server_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "template.yaml"
    text = yaml.safe_dump(FROM_A_TEMPLATE)
    assert "maxModelLength: 1000000.0" in text
    file.write_text(text.replace("1000000.0", "1e+06"))
    assert main(["check", str(file)]) == 0, capsys.readouterr().err
    spec = parse(FROM_A_TEMPLATE).spec
    assert (spec.engine.max_model_length, spec.model.aliases, spec.autoscaling) == (1_000_000, [], None)
    assert parse(merged(VALID, {"spec": {"disruption": None}})).spec.disruption is None


@pytest.mark.parametrize("word", ["1e3", "1.5e3", "1e+06", "y", "N", "0o17", ".5", "1."])
def test_strings_that_kubectl_reads_as_something_else_are_written_in_quotes(word: str) -> None:
    assert dump({"value": word}) == f"value: '{word}'\n"
    assert not isinstance(load(f"value: {word}\n".encode())[0].content["value"], str)


def test_a_schedule_that_can_never_start_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schedule = {"name": "s", "timeZone": "Mars/Olympus", "start": "0 8 * * *", "duration": "1h"}
    bounds = {"minReplicas": 1, "maxReplicas": 2}
    file = tmp_path / "planned.yaml"
    planned = {"autoscaling": {**bounds, "schedules": [schedule | bounds]}}
    file.write_text(yaml.safe_dump(merged(VALID, {"spec": planned})))
    assert main(["check", str(file)]) == 0
    assert "note: schedule s is ignored: there is no time zone 'Mars/Olympus'" in capsys.readouterr().err


@pytest.mark.parametrize(("suspend", "code"), [(False, 2), (True, 0)])
def test_what_is_suspended_is_rendered_also_where_no_pod_could_run(
    suspend: bool, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "later.yaml"
    later = {"engine": {"extraArgs": ["--speculative-config={}"]}, "suspend": suspend}
    file.write_text(yaml.safe_dump(merged(VALID, {"spec": later})))
    assert main(["render", str(file)]) == code
    assert ("replicas: 0" in capsys.readouterr().out) == suspend


def test_fields_that_do_not_act_yet_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "later.yaml"
    file.write_text(yaml.safe_dump(merged(VALID, {"spec": {"engine": {"extraArgs": ["--speculative-config={}"]}}})))
    assert main(["check", str(file)]) == 0
    assert "note: spec.engine.extraArgs: " in capsys.readouterr().err
