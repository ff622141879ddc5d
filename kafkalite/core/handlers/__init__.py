"""One module per API family, as in `protocol`: the broker's answers.                        [D]

Importing this package fills `ROUTES`, from which ApiVersions is built: an API without a module
here is not advertised.
"""

from kafkalite.core.handlers import (
    api_versions,
    configs,
    delete_records,
    fetch,
    find_coordinator,
    groups,
    list_offsets,
    log_dirs,
    metadata,
    offset_commits,
    produce,
    producer_ids,
    topics,
    transactions,
)
from kafkalite.core.handlers.routes import ROUTES

__all__ = [
    "ROUTES",
    "api_versions",
    "configs",
    "delete_records",
    "fetch",
    "find_coordinator",
    "groups",
    "list_offsets",
    "log_dirs",
    "metadata",
    "offset_commits",
    "produce",
    "producer_ids",
    "topics",
    "transactions",
]
