from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path

import pytest

from transhash.datasets import imagenet_yahooqa as yahooqa
from transhash.datasets.imagenet_yahooqa import (
    ClassWords,
    LabeledQuestion,
    find_yahooqa,
    read_yahooqa,
)
from transhash.datasets.raw import Problems
from transhash.errors import DataError

from .raw_layouts import document, reasons, xml

WORDS = {"dog": ["dog", "dogs"], "cat": ["cat", "cats"], "fox": ["fox", "foxes"]}
QUESTIONS = (
    document("1", "Why do dogs bark?", answer="They are bored."),
    document("2", "How tall is a house?", answer="It depends."),
    document("3", "Do cats like a dog?", answer="Some do."),
    document("4", "What is it?", "It is small & red.", "A fox!<br />\nReally, a Fox."),
)


def read(source: Path) -> tuple[list[LabeledQuestion], list[tuple[str, int, str]]]:
    report = source.parent / "report.tsv"
    with Problems(report) as problems:
        questions = list(read_yahooqa(source, WORDS, problems))
    return questions, reasons(report)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "yahoo").mkdir()
    return tmp_path / "yahoo" / "FullOct2007.xml"


def test_questions_with_words_of_one_category_are_read(source: Path) -> None:
    source.write_text(xml(QUESTIONS))
    questions, problems = read(source)
    assert questions == [
        LabeledQuestion("1", "Why do dogs bark? They are bored.", "dog"),
        LabeledQuestion("4", "What is it? It is small & red. A fox! Really, a Fox.", "fox"),
    ]
    assert problems == []


@pytest.mark.parametrize(
    ("text", "categories"),
    [
        ("DOG", {"dog"}),
        ("my dog's bone", {"dog"}),
        ("hotdogs and catfish", set()),
        ("(cat)", {"cat"}),
        ("dog_1", {"dog"}),
        ("a fox and two foxes", {"fox"}),
        ("cats or dogs", {"cat", "dog"}),
    ],
)
def test_class_words_match_tokens_in_any_case(text: str, categories: set[str]) -> None:
    assert ClassWords(WORDS).match(text) == categories


def test_a_class_word_of_two_categories_is_refused() -> None:
    with pytest.raises(DataError, match="'jaguar' of 'cat'"):
        ClassWords({"cars": ["jaguar"], "cat": ["jaguar"]})


def test_gzip_parts_may_be_cut_inside_an_element(source: Path) -> None:
    content = xml(QUESTIONS).encode()
    cut = content.index(b"bark")
    (source.parent / "FullOct2007.xml.part1.gz").write_bytes(gzip.compress(content[:cut]))
    (source.parent / "FullOct2007.xml.part2.gz").write_bytes(gzip.compress(content[cut:]))
    questions, problems = read(source.parent)
    assert [question.id for question in questions] == ["1", "4"]
    assert problems == []


def test_parts_are_read_in_numerical_order(tmp_path: Path) -> None:
    for number in (10, 9, 1):
        (tmp_path / f"a.xml.part{number}").write_text("")
    assert [path.name for path in find_yahooqa(tmp_path)] == [
        "a.xml.part1",
        "a.xml.part9",
        "a.xml.part10",
    ]


def test_elements_may_span_chunks(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source.write_text(xml(QUESTIONS))
    packed = source.parent / "packed.xml.gz"
    packed.write_bytes(gzip.compress(source.read_bytes()))
    for size in (16, 112, 1024):
        monkeypatch.setattr("transhash.datasets.raw.CHUNK_BYTES", size)
        for path in (source, packed):
            questions, problems = read(path)
            assert [question.id for question in questions] == ["1", "4"]
            assert problems == []


def test_truncated_xml_is_read_up_to_the_cut(source: Path) -> None:
    text = xml(QUESTIONS)
    source.write_text(text[: text.index("Really")])
    questions, problems = read(source)
    assert [question.id for question in questions] == ["1"]
    assert problems == [("FullOct2007.xml", 21, "truncated XML")]


def test_malformed_questions_are_skipped(source: Path) -> None:
    bad = [
        document("5", "dog").replace("</subject>", ""),
        document("6", "dog").replace("</document>", ""),
        document("7", "a dog \x01 character"),
        document("", "a dog without uri"),
    ]
    source.write_text(xml([QUESTIONS[0], *bad, QUESTIONS[3]]))
    questions, problems = read(source)
    assert [question.id for question in questions] == ["1", "4"]
    assert problems == [
        ("FullOct2007.xml", 9, "malformed XML"),
        ("FullOct2007.xml", 15, "malformed XML"),
        ("FullOct2007.xml", 21, "malformed XML"),
        ("FullOct2007.xml", 27, "incomplete question"),
    ]


def test_bytes_that_are_not_utf8_cost_only_their_question(source: Path) -> None:
    source.write_bytes(xml(QUESTIONS).encode().replace(b"bored", b"bor\xe9d"))
    questions, problems = read(source)
    assert [question.id for question in questions] == ["4"]
    assert problems == [("FullOct2007.xml", 3, "malformed XML")]


def test_an_endless_element_does_not_fill_memory(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(yahooqa, "_MAX_DOCUMENT_BYTES", 1000)
    monkeypatch.setattr("transhash.datasets.raw.CHUNK_BYTES", 500)
    source.write_text("<document>" + "x" * 5000 + xml(QUESTIONS))
    questions, problems = read(source)
    assert [question.id for question in questions] == ["1", "4"]
    assert problems[0] == ("FullOct2007.xml", 1, "malformed XML")


def test_questions_in_other_languages_are_skipped(source: Path) -> None:
    french = document(
        "8", "dog", more="<qlang>fr</qlang><qintl>fr</qintl><language>fr-fr</language>"
    )
    source.write_text(xml([french, document("9", "dog", more="<language>en-us</language>")]))
    assert [question.id for question in read(source)[0]] == ["9"]


def test_a_file_without_questions_is_refused(source: Path) -> None:
    source.write_text("<html>please sign in</html>")
    with pytest.raises(DataError, match=r"no <document> element.*Webscope"):
        read(source)


def test_a_damaged_gzip_is_read_up_to_the_damage(tmp_path: Path) -> None:
    many = xml(document(str(n), f"dog number {n * 7919}") for n in range(5000)).encode()
    packed = gzip.compress(many)
    source = tmp_path / "a.xml.gz"
    source.write_bytes(packed[: len(packed) // 2])
    questions, problems = read(source)
    assert 1000 < len(questions) < 4000
    assert problems[0] == ("a.xml.gz", 0, "truncated gzip")
    source.write_bytes(packed[:-8] + b"\xff" * 8)  # the checksum
    questions, problems = read(source)
    assert len(questions) > 4000
    assert problems[0] == ("a.xml.gz", 0, "damaged gzip")
    source.write_bytes(packed + b"\0" * 512)  # zero padding is allowed
    assert read(source)[1] == []


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".csv.gz"])
def test_tables_are_read_by_their_column_names(tmp_path: Path, suffix: str) -> None:
    tab = "\t" if suffix == ".tsv" else ","
    rows = ["ID,Question,Answer", "q1,Why dogs?,Because", 'q2,"Cats,\nmaybe",Yes', "q3,None,At all"]
    content = "\n".join(rows).replace(",", tab, 999).encode()
    if suffix == ".tsv":
        content = content.replace(b"Cats\t", b"Cats,")
    source = tmp_path / f"qa{suffix}"
    source.write_bytes(gzip.compress(content) if suffix.endswith(".gz") else content)
    questions, problems = read(source)
    assert questions == [
        LabeledQuestion("q1", "Why dogs? Because", "dog"),
        LabeledQuestion("q2", "Cats, maybe Yes", "cat"),
    ]
    assert problems == []


def test_the_topic_classification_copy_without_a_header_is_read(tmp_path: Path) -> None:
    source = tmp_path / "train.csv"
    source.write_text('"5","why dogs?","","so\\nthere"\n"2","what?","a fox","ok"\n')
    assert [question.text for question in read(source)[0]] == [
        "why dogs? so there",
        "what? a fox ok",
    ]


def test_bad_rows_of_a_table_are_listed_by_line(tmp_path: Path) -> None:
    source = tmp_path / "qa.csv"
    source.write_bytes(
        b"text,id\na dog,1\na cat\na fox \xff,3\n,4\na cat,5\n" + b'"' + b"x" * 1_100_000
    )
    questions, problems = read(source)
    assert [question.id for question in questions] == ["1", "5"]
    assert problems == [
        ("qa.csv", 3, "bad row"),
        ("qa.csv", 4, "not UTF-8"),
        ("qa.csv", 5, "empty text"),
        ("qa.csv", 7, "bad row"),
    ]


def test_json_lines_are_read_and_bad_ones_listed(tmp_path: Path) -> None:
    source = tmp_path / "qa.jsonl"
    good = json.dumps({"id": 7, "question": "A dog?", "answer": None})
    source.write_text(f'{good}\n{{"text": \n[1]\n\n{{"text": "a cat"}}\n')
    questions, problems = read(source)
    assert questions == [
        LabeledQuestion("7", "A dog?", "dog"),
        LabeledQuestion("line-5", "a cat", "cat"),
    ]
    assert problems == [("qa.jsonl", 2, "bad row"), ("qa.jsonl", 3, "bad row")]


def test_a_table_needs_a_text_column(tmp_path: Path) -> None:
    (tmp_path / "qa.csv").write_text("title_of_work,year\nx,1\n")
    with pytest.raises(DataError, match="no column text, question or answer"):
        read(tmp_path / "qa.csv")


def test_a_folder_must_have_one_data_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no Yahoo Answers file"):
        find_yahooqa(tmp_path)
    for name in ("a.csv", "b.jsonl"):
        (tmp_path / name).write_text("")
    with pytest.raises(DataError, match="several text files"):
        find_yahooqa(tmp_path)
    (tmp_path / "a.pdf").write_text("")
    with pytest.raises(DataError, match="not a Yahoo Answers file"):
        find_yahooqa(tmp_path / "a.pdf")


def test_memory_does_not_grow_with_the_number_of_questions(tmp_path: Path) -> None:
    source = tmp_path / "big.xml.gz"
    with gzip.open(source, "wt", compresslevel=1) as file:
        file.write("<ystfeed>")
        for number in range(20_000):
            file.write(document(str(number), f"Is {number} a dog?", answer="yes " * 20))
    size = 20_000 * 400
    with Problems(tmp_path / "report.tsv") as problems:
        tracemalloc.start()
        try:
            count = sum(1 for _ in read_yahooqa(source, WORDS, problems))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert count == 20_000
    assert peak < 6_000_000 < size
