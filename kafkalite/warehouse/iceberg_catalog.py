"""The catalog that has an Iceberg table: the warehouse's own, or one of pyiceberg's.         [IO]

    WAREHOUSE/iceberg.db               the catalog of a warehouse, in SQLite
    TABLE/_kafkalite/catalog.json      the name of the catalog that the table was made in

Owns   the note. It keeps a load that forgets `--catalog` from making the table a second time.
Fails  with StorageError if a catalog does not answer or refuses, and with ConfigError if
       pyiceberg's configuration has no usable catalog of the name, or another one has the table.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitStateUnknownException, NotInstalledError, RESTError
from requests.exceptions import RequestException

from kafkalite.errors import ConfigError, StorageError
from kafkalite.warehouse.files import write_json
from kafkalite.warehouse.workspace import Workspace, noted

NOTE: Final = "catalog.json"


def catalog_of(table: Path, name: str | None, properties: Mapping[str, str]) -> Catalog:
    """The catalog of that name, or the warehouse's own."""
    if name is None:
        warehouse = table.parent
        warehouse.mkdir(parents=True, exist_ok=True)
        uri, location = f"sqlite:///{warehouse / 'iceberg.db'}", f"file://{warehouse}"
        return load_catalog("kafkalite", type="sql", uri=uri, warehouse=location)
    with catalog_answers(table):
        try:
            return load_catalog(name, **properties)
        except (ValueError, NotInstalledError) as error:  # what its configuration or Python lacks
            raise ConfigError(f"--catalog {name}: {error}") from error


@contextmanager
def catalog_answers(table: Path) -> Iterator[None]:
    """Names the table where its catalog fails. A commit whose answer is lost may have happened;
    the next load asks the catalog.
    """
    try:
        yield
    except CommitStateUnknownException as error:
        raise StorageError(
            f"table {table}: its catalog did not say whether it has committed; the next load finds "
            f"out: {error}"
        ) from error
    except (RESTError, RequestException) as error:
        raise StorageError(f"table {table}: its catalog failed: {error}") from error
    except _errors_of_aws() as error:
        raise StorageError(f"table {table}: its catalog failed: {error}") from error


def _errors_of_aws() -> tuple[type[Exception], ...]:
    """What a client of Glue raises; nothing where none was made, as boto3 is large."""
    errors = sys.modules.get("botocore.exceptions")
    return () if errors is None else (errors.BotoCoreError, errors.ClientError)


def note_catalog(table: Path, name: str | None) -> None:
    """Notes where a table is about to be made."""
    folder = Workspace(table).folder
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / NOTE, {"catalog": name})


def check_catalog(table: Path, name: str | None) -> None:
    """ConfigError where a table that is not in this catalog was made in another one."""
    there = noted(Workspace(table).folder / NOTE)
    if there is None or there["catalog"] == name:
        return
    other = there["catalog"]
    hint = "without --catalog" if other is None else f"with --catalog {other}"
    raise ConfigError(
        f"table {table} is not in the catalog {name or 'of its warehouse'}: load it {hint}"
    )
