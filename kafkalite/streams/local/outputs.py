"""The topics that an application writes: what they take, and how long they keep it.       [IO]

    limits      max.message.bytes of each, for sinks and stores: sizes.py
    warnings    records older than a topic's retention, once a topic: they would soon be deleted

Topics that a function names are looked up once records for them have gone out.

Owns   the settings of these topics as they were when they were looked up.
Fails  not at all: a topic that brokers do not describe has no limits that we know.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from kafkalite.clients.admin.client import Admin, ConfigResource, ResourceType
from kafkalite.core.columns import least
from kafkalite.errors import ApiError
from kafkalite.streams.durations import spell
from kafkalite.streams.local.batch import Output

SETTINGS: Final = ("max.message.bytes", "retention.ms", "cleanup.policy", "message.timestamp.type")
TOPICS_MAX: Final = 10_000  # looked at; beyond it the rest have no known limits
DATE_MS_MAX: Final = 253_402_300_799_999  # the end of the year 9999

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Retention:
    """How long a topic keeps records by their own timestamps."""

    ms: int

    def words(
        self,
        application_id: str,
        topic: str,
        timestamp: int,
        servers: str,
        *,
        is_dead_letters: bool,
    ) -> str:
        """What a user should know, and do. No operator makes the topic of dead letters."""
        when = datetime.fromtimestamp(min(timestamp, DATE_MS_MAX) / 1000, UTC)
        by_code = ", or let the application make the topic with .to(topic, create={})"
        return (
            f"{application_id}: writes records of {when:%Y-%m-%d} into topic {topic!r}, which "
            f"keeps them for {spell(self.ms)} by their timestamps: brokers will soon delete them. "
            f"To keep them: kafkalite configs alter {topic} --set retention.ms=-1 -b {servers}"
            f"{'' if is_dead_letters else by_code}"
        )


class Outputs:
    """Facts about the topics that one worker writes."""

    def __init__(
        self,
        admin: Admin,
        application_id: str,
        servers: str,
        dead_letter_topic: str | None = None,
    ) -> None:
        self._admin = admin
        self._dead_letter_topic = dead_letter_topic
        self._application_id = application_id
        self._servers = servers
        self._known: set[str] = set()
        self._unknown: set[str] = set()  # written, and not looked up yet
        self._retentions: dict[str, Retention] = {}  # of topics that nobody was warned about
        self.limits: dict[str, int] = {}  # max.message.bytes by topic

    async def look_up(self, topics: Iterable[str]) -> None:
        """Asks for the settings of topics."""
        wanted = set(topics) - self._known
        self._known |= wanted
        for topic in sorted(wanted)[: max(0, TOPICS_MAX - len(self.limits))]:
            resource = ConfigResource(ResourceType.TOPIC, topic)
            try:
                found = (await self._admin.describe_configs([resource], SETTINGS))[resource]
            except ApiError as error:  # one that is not there yet, or not for us to see
                log.info("settings of topic %r are not known: %s", topic, error)
                continue
            self._take(topic, {name: entry.value for name, entry in found.items()})

    def _take(self, topic: str, settings: dict[str, str | None]) -> None:
        if (limit := settings.get("max.message.bytes")) is not None:
            self.limits[topic] = int(limit)
        kept_ms = int(settings.get("retention.ms") or -1)
        deletes = "delete" in (settings.get("cleanup.policy") or "delete")
        stamps = settings.get("message.timestamp.type") == "LogAppendTime"
        if kept_ms >= 0 and deletes and not stamps:
            self._retentions[topic] = Retention(kept_ms)

    @property
    def has_new(self) -> bool:
        """Whether records have gone to topics that were not looked up."""
        return bool(self._unknown)

    async def look_up_new(self) -> None:
        """Asks for the settings of topics that came up since."""
        if self._unknown:
            new, self._unknown = self._unknown, set()
            await self.look_up(new)

    def note(self, output: Output, now_ms: int) -> None:
        """Looks at what goes out: warns once a topic of records that it will not keep."""
        topic = output.topic
        if topic not in self._known:
            self._unknown.add(topic)
        retention = self._retentions.get(topic)
        if retention is None or not len(output.columns):
            return
        oldest = least(output.columns.timestamps)
        if oldest < now_ms - retention.ms:
            del self._retentions[topic]
            is_dead_letters = topic == self._dead_letter_topic
            words = retention.words(
                self._application_id, topic, oldest, self._servers, is_dead_letters=is_dead_letters
            )
            log.warning("%s", words)
