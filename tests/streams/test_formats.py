"""What earlier versions left on disk opens in this one: logs, changelogs, state directories.

`formats/STATE-TOPOLOGY.tar.xz` has a broker's data directory and the state directory of
`many_apps.py` after a first round of records, in the formats of those numbers. A run goes on from
there, once with the state directory and once with the changelogs alone, and must end as if it had
never stopped. A new format gets a file of its own: `python tests/streams/test_formats.py` makes it.
The old ones stay.
"""

from __future__ import annotations

import shutil
import tarfile
import tempfile
import time
from pathlib import Path

import pytest
from many_apps import TOPOLOGIES
from many_runs import Run

from kafkalite.embedded import EmbeddedBroker
from kafkalite.streams.fingerprint import VERSION
from kafkalite.streams.local.state.forms import FORMAT
from kafkalite.streams.local.state.rocks import RocksBackend

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

NAME = f"{FORMAT}-{VERSION}.tar.xz"
FORMATS = Path(__file__).with_name("formats")
INSTANCE = "first"
NOT_READ = ("LOG", "LOCK", "LOG.old")  # of RocksDB


def make(target: Path) -> None:
    """Runs a first round, and packs what it leaves."""
    with tempfile.TemporaryDirectory() as folder:
        with EmbeddedBroker(Path(folder) / "data") as broker:
            run = Run(broker.bootstrap_servers, Path(folder) / "state")
            run.begin()
            run.send()
            run.catch_up(INSTANCE)
        with tarfile.open(target, "w:xz") as packed:
            for path in sorted(Path(folder).rglob("*")):
                if path.is_file() and path.name not in NOT_READ:
                    packed.add(path, path.relative_to(folder))


def test_state_of_this_format_is_kept_for_later_versions() -> None:
    assert (FORMATS / NAME).exists(), f"python {__file__}"


def freshen(state: Path) -> None:
    """Gives the stores today's date: state that is older than a day is rebuilt, as deletions stay
    no longer in a changelog."""
    for current in state.rglob("CURRENT"):
        backend = RocksBackend(current.parent)
        assert backend.metadata("written")
        backend.put_many({}, {"written": b"%d" % (time.time() * 1_000)})
        backend.close()


@pytest.fixture(params=sorted(FORMATS.glob("*.tar.xz")), ids=lambda path: path.name)
def left_behind(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder with `data` and `state`."""
    with tarfile.open(request.param) as packed:
        packed.extractall(tmp_path, filter="data")
    freshen(tmp_path / "state")
    return tmp_path


@pytest.mark.parametrize("keeps_state", [True, False], ids=["state_dir", "changelogs"])
def test_an_application_goes_on_from_what_was_left(
    left_behind: Path, keeps_state: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    if not keeps_state:
        shutil.rmtree(left_behind / "state")
    with EmbeddedBroker(left_behind / "data") as broker:
        run = Run(broker.bootstrap_servers, left_behind / "state")
        run.note()  # was sent then
        run.send()
        run.finish(INSTANCE)
        for name in TOPOLOGIES:
            run.check(name)
    assert "rebuilt" not in capfd.readouterr().err, "state on disk was of no use"


if __name__ == "__main__":
    FORMATS.mkdir(exist_ok=True)
    made = FORMATS / f"{NAME}"
    make(made)
    print(f"{made}: {made.stat().st_size:,} bytes")
