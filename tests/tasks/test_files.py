"""CSV and Parquet files of one's own, and bad input that is refused with file, line, value and remedy."""

from __future__ import annotations

import pytest

from fewnlu.errors import DataError
from fewnlu.tasks.sources import load_rows
from tests.tasks.test_sources import toy


def read(folder, content, name="l.csv", **more):
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    task = toy(source={"files": {"labeled": name, "test": None}}, **more)
    return load_rows(task, {"dir": str(folder)}, "labeled").rows


def test_csv(tmp_path):
    text = '\ufeffid,text,label\r\n1,"a ""quoted"", text\nof two lines",pos\r\n\r\n2,b,neg\r\n'
    found = read(tmp_path, text)
    assert [(r.id, r.fields["text"], r.label) for r in found] == [
        ("1", 'a "quoted", text\nof two lines', "pos"), ("2", "b", "neg")]  # fmt: skip
    assert [r.id for r in read(tmp_path, "text,label\nx,pos\ny,neg\n", id=None)] == ["1", "2"]
    assert read(tmp_path, "id\ttext\tlabel\n1\ta, b\tpos\n", "l.tsv")[0].fields["text"] == "a, b"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("id,text,label\n1,a,pos\n2,b,maybe\n", r"l\.csv:3: unknown label 'maybe'; choose one of: neg, pos"),
        ("id,text,label\n1,a,pos\n2,,neg\n", r"l\.csv:3: field 'text' is empty; give it a text"),
        ("id,text,label\n1,a,pos\n2,b,\n", r"l\.csv:3: label 'label' is empty"),
        ("id,text,label\n1,a,pos\n1,b,neg\n", r"l\.csv:3: id '1' is there already \(.*l\.csv:2\)"),
        ("id,text,label\n1,a, b,pos\n", r"l\.csv:2: 4 cells, the first line names 3 columns \(id, text, label\)"),
        ('id,text,label\n1,"a\nb",pos\n2,b,oops\n', r"l\.csv:4: unknown label 'oops'"),
        ("id;text;label\n1;a;pos\n", r"l\.csv:2: field 'text' is missing; the row has id;text;label"),
        ("id,text,id\n1,a,2\n", r"l\.csv:1: the first line must name each column once"),
        (b"id,text,label\n1,caf\xe9,pos\n", r"l\.csv:2: not UTF-8"),
        ('id,text,label\n1,"a"b,pos\n', r"l\.csv:2: broken CSV"),
        ('id,text,label\n1,"a"b,pos\n', r"quotes inside a quoted cell are doubled"),
        ("id,text,label\r1,a,pos\r", r"l\.csv:1: broken CSV .*not with \\r alone: convert the file's line ends"),
        ("", r"file l\.csv below data\.dir=.*: no rows"),
        ("id,text,label\n", r"file l\.csv below data\.dir=.*: no rows"),
    ],
)
def test_bad_csv_names_file_line_and_value(tmp_path, content, says):
    with pytest.raises(DataError, match=says):
        read(tmp_path, content)


def test_long_cells_are_read(tmp_path):
    text = "a word " * 40_000
    found = read(tmp_path, f"id,text,label\n1,{text},pos\n2,b,neg\n")
    assert found[0].fields["text"] == text and len(found) == 2


def test_a_tsv_cell_that_begins_with_a_plain_quote(tmp_path):
    with pytest.raises(DataError, match=r'l\.tsv:2: broken CSV .*write the text "Yes", he said as """Yes"", he said"'):
        read(tmp_path, 'id\ttext\tlabel\n1\t"Yes", he said\tpos\n', "l.tsv")
    found = read(tmp_path, 'id\ttext\tlabel\n1\t"""Yes"", he said"\tpos\n', "l.tsv")
    assert found[0].fields["text"] == '"Yes", he said'


def test_parquet(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"id": [4, 5], "text": ["a", "b"], "label": ["pos", "neg"]})
    pq.write_table(table, tmp_path / "l.parquet")
    content = (tmp_path / "l.parquet").read_bytes()
    assert [(r.id, r.label) for r in read(tmp_path, content, "l.parquet")] == [("4", "pos"), ("5", "neg")]
    pq.write_table(table.append_column("n", pa.array([1, 2])), tmp_path / "m.parquet")
    with pytest.raises(DataError, match=r"l\.parquet row 1: field 'm' is missing; the row has id, text, label"):
        read(tmp_path, content, "l.parquet", fields={"text": "m"})
    with pytest.raises(DataError, match=r"l\.parquet: no Parquet file"):
        read(tmp_path, b"PAR1 not really", "l.parquet")
