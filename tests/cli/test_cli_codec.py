"""Without the native codec the commands run, and one line says so."""

from __future__ import annotations

import pytest

from kafkalite.cli import say_which_codec
from kafkalite.compaction import loops
from kafkalite.core.protocol import record_codec

INSTEAD = "here: pure Python does its work, slower\n"


def test_a_machine_without_the_native_codec_hears_of_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(record_codec, "NATIVE", False)
    say_which_codec()
    assert capsys.readouterr().err.count("\n") == 1
    monkeypatch.setattr(record_codec, "NATIVE", True)
    say_which_codec()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("codec", "cleaner", "said"),
    [
        (True, True, ""),
        (True, False, f"kafkalite: no native log cleaner {INSTEAD}"),
        (False, False, f"kafkalite: no native record codec and log cleaner {INSTEAD}"),
    ],
)
def test_whoever_starts_a_broker_hears_of_its_cleaner_too(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    codec: bool,
    cleaner: bool,
    said: str,
) -> None:
    monkeypatch.setattr(record_codec, "NATIVE", codec)
    monkeypatch.setattr(loops, "NATIVE", cleaner)
    say_which_codec(cleaner=True)
    assert capsys.readouterr().err == said
