"""Temperatures by minute, and sensors that have fallen silent.

kafkalite-streams run examples/sensors/app.py -b 127.0.0.1:9092
"""

from typing import Any

from kafkalite.streams import (
    KeyValueStore,
    Processor,
    ProcessorContext,
    Record,
    Streams,
    count,
    json,
    max_,
    mean,
    store,
    string,
    tumbling,
)

Reading = dict[str, Any]
SILENT_MS = 30_000

SENSORS = store("sensors", key=string(), value=json())  # when each was heard, and if it is silent

app = Streams("sensors", key=string(), value=json())

readings = app.stream("readings", timestamp="at")  # by sensor

# A minute is over when a newer reading says so, or when no sensor has sent any for twenty seconds.
(
    readings.group_by_key()
    .window(tumbling("1m", grace="10s"))
    .aggregate(readings=count(), mean=mean("celsius"), highest=max_("celsius"), name="minutes")
    .final(idle="20s")
    .to("temperatures", create={})
)


class Watch(Processor[str, Reading, str, dict[str, Any]]):
    """Says once that a sensor is silent, and once that it is back.

    Only the wall clock can notice silence: without records, stream time stands still.
    """

    def init(self, context: ProcessorContext[str, dict[str, Any]]) -> None:
        self.context = context
        self.sensors: KeyValueStore[str, dict[str, Any]] = context.store(SENSORS)
        context.schedule("5s", "wall_clock", self.look)

    def process(self, record: Record[str, Reading]) -> None:
        before = self.sensors.get(record.key)
        self.sensors.put(record.key, {"heard": self.context.wall_clock, "silent": False})
        if before is not None and before["silent"]:
            self.context.forward(record.replace(value={"status": "back"}))

    def look(self, now: int) -> None:
        for sensor, state in self.sensors.all():
            if not state["silent"] and now - state["heard"] >= SILENT_MS:
                self.sensors.put(sensor, {**state, "silent": True})
                value = {"status": "silent", "since": state["heard"]}
                self.context.forward(Record(sensor, value, now))


readings.process_values(Watch, stores=[SENSORS], name="watch").to("sensor-status", create={})
