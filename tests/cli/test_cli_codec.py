"""Without the native codec the commands run, and one line says so."""

from __future__ import annotations

import pytest

from kafkalite.cli import say_which_codec
from kafkalite.core.protocol import record_codec


def test_a_machine_without_the_native_codec_hears_of_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(record_codec, "NATIVE", False)
    say_which_codec()
    assert capsys.readouterr().err.count("\n") == 1
    monkeypatch.setattr(record_codec, "NATIVE", True)
    say_which_codec()
    assert capsys.readouterr().err == ""
