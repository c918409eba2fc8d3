"""The check of prose in `make lint` (tests/prose.py) finds what is not in plain words."""

from __future__ import annotations

from pathlib import Path

import pytest

import prose

MOST = "I " + "a " * (prose.MOST_WORDS - 2) + "b."
LONG = "I " + "a " * (prose.MOST_WORDS - 1) + "b."
WIDE = "x" * 60 + " " + "y" * 60


def found(text: str) -> list[str]:
    return [str(finding) for finding in prose.findings(text)]


def test_each_folder_of_modules_exists() -> None:
    assert [folder for folder in prose.FOLDERS if not (prose.ROOT / folder).is_dir()] == []


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        (f"Short.\n{LONG}", "2: a sentence of 36 words; make it two"),
        (f"- one\n- {LONG}", "2: a sentence of 36 words; make it two"),
        ("word\n" * 36, "1: a sentence of 36 words; make it two"),
        ("It works. What\nruns is seen.", "1: a sentence begins with 'What'; name the actor"),
        ("**Who waits** pays.", "1: a sentence begins with 'Who'; name the actor"),
        (WIDE, "1: 121 columns; break it at 100"),
        (f"- one\n  {WIDE}", "2: 123 columns; break it at 100"),
        ("The rank goes\non.", "1: 'goes on' is retired; say 'continue' or 'resume'"),
        ("# A door", "1: 'door' is retired; say 'server' or 'query server'"),
        ("It hears them.", "1: 'hears' is retired; say 'receives' or 'learns'"),
        ("It holds the GPUs.", "1: 'holds the GPUs' is retired; say 'allocated' or 'reserved'"),
        ("| a | Nobody asks. |", "1: 'Nobody' is retired; name the actor: 'no team', 'a user'"),
        ("| a | " + "word " * 26 + "|", "1: a table cell of 26 words; move it below the table"),
        ("```\ntold\n```\n\nIt shall.", "5: 'shall' is retired; say 'must' or 'will'"),
        ("<!-- told\n-->\nIt shall.", "3: 'shall' is retired; say 'must' or 'will'"),
    ],
)
def test_a_finding_names_its_line_and_the_way_out(text: str, finding: str) -> None:
    assert found(text) == [finding]


@pytest.mark.parametrize(
    "text",
    [
        MOST,
        f"{MOST}\n\n{MOST}",
        f"- {MOST}\n- {MOST}",
        f"# {LONG}",
        "What runs? `gangline list` shows it.",
        "What-if gives an answer.",
        "The log says `the rank goes on` and `told`.",
        "[The page](nobody-door.md) has it.",
        "A code block:\n\n    " + "told " * 40,
        "```sh\n" + "told " * 40 + "\n```",
        "| " + "figure " * 20 + "|",
        "[" + "x" * 120 + "](page.md)",
        "<!-- nobody -->",
    ],
)
def test_what_is_right_or_no_prose_is_left_alone(text: str) -> None:
    assert found(text) == []


def test_the_command_names_the_page_and_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs" / "page.md"
    page.write_text("All is well.\n")
    assert prose.main([]) == 0
    page.write_text("All is mended.\n")
    assert prose.main([]) == 1
    assert capsys.readouterr().out == "docs/page.md:1: 'mended' is retired; say 'fix'\n"
    (tmp_path / "other.md").write_text("All is well.\n")
    assert prose.main([str(tmp_path / "other.md")]) == 0


@pytest.mark.parametrize(
    ("source", "finding"),
    [
        ('"""It shall."""', "1: 'shall' is retired; say 'must' or 'will'"),
        ('"""Works.\n\nIt shall.\n"""', "3: 'shall' is retired; say 'must' or 'will'"),
        (
            'class A:\n    """Works.\n\n    What runs is seen.\n    """',
            "4: a sentence begins with 'What'; name the actor",
        ),
        (f'def f():\n    """{LONG}"""', "2: a sentence of 36 words; make it two"),
        (
            'A = 1\n"""The last one told."""',
            "2: 'told' is retired; say 'reported', 'logged' or 'sent'",
        ),
        ("# The rank goes\n# on.", "1: 'goes on' is retired; say 'continue' or 'resume'"),
        ("a = 1\nb = 2  # It shall.", "2: 'shall' is retired; say 'must' or 'will'"),
        ("raise A('it shall')", "1: 'shall' is retired; say 'must' or 'will'"),
        ("log(f'{x} was told')", "1: 'told' is retired; say 'reported', 'logged' or 'sent'"),
        ("A(text='Who has it.')", "1: a sentence begins with 'Who'; name the actor"),
    ],
)
def test_a_finding_in_a_module_names_its_line(source: str, finding: str) -> None:
    assert [str(found) for found in prose.module_findings(source)] == [finding]


@pytest.mark.parametrize(
    "source",
    [
        f'"""{MOST}"""',
        f'"""Works.\n\n    {LONG}\n\nIt ends.\n"""',
        f"# {MOST}\n\n# {MOST}",
        f"# {MOST}\na = 1\n# {MOST}",
        f"a = 1  # {MOST[:-1]}\nb = 1  # {MOST}",
        f"words('{LONG}')",
        "words('told', 'door')",
        "told = 'a'",
        '"""It reads `told`."""',
    ],
)
def test_what_is_no_prose_of_a_module_is_left_alone(source: str) -> None:
    assert prose.module_findings(source) == []


@pytest.mark.parametrize(
    ("file", "text", "found"),
    [
        ("services/a/asking.py", "", ["1: 'asking' in asking"]),
        ("services/a/b.py", "\n\nclass _FreeRoom: ...\n", ["3: 'room' in _FreeRoom"]),
        ("services/a/b.py", "class Classroom:\n    pass\n\nrooms = 'door'\n", []),
        ("tests/unit/test_scene.py", "", ["1: 'scene' in test_scene"]),
        ("tests/unit/test_a.py", "class HTTPDoor: ...\n", ["1: 'door' in HTTPDoor"]),
        ("tests/unit/test_a.py", '"""It shall."""\n', ["1: 'shall'"]),
        ("tests/unit/test_a.py", "# It shall.\n", ["1: 'shall'"]),
        ("tests/unit/test_a.py", '"""What a rank reports."""\nassert a == "it shall"\n', []),
        ("examples/a/train.py", '"""It shall."""\n', ["1: 'shall'"]),
        ("examples/job.yaml", "# It works.\nname: a  # it shall\n# It shall.\n", ["3: 'shall'"]),
        ("deploy/containers/a.Containerfile", "FROM a\n# It\n# shall.\n", ["3: 'shall'"]),
        ("deploy/a/b.toml", "shall = 1\n", []),
    ],
)
def test_each_kind_of_file_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    file: str, text: str, found: list[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert prose.main([]) == int(bool(found))
    printed = capsys.readouterr().out.splitlines()
    assert [line.removeprefix(f"{file}:").partition(" is retired")[0] for line in printed] == found
