import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.Properties;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.TestOutputTopic;
import org.apache.kafka.streams.TopologyTestDriver;
import org.apache.kafka.streams.kstream.*;
import org.apache.kafka.streams.processor.Cancellable;
import org.apache.kafka.streams.processor.PunctuationType;
import org.apache.kafka.streams.processor.api.*;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.*;
import org.apache.kafka.streams.test.TestRecord;

/**
 * Processors in Kafka Streams: `case NAME` chooses a topology, then `pipe KEY VALUE TIMESTAMP HEADER` or
 * `advance MS`, then `end`. `-` is null. After each come the records it led to, and a line with a
 * point. test_processors_oracle.py has the same processors.
 */
public class Processors {
    static final Serde<String> STRING = Serdes.String();
    static final Serde<Long> LONG = Serdes.Long();

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        TopologyTestDriver driver = null;
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] w = line.split(" ");
            switch (w[0]) {
                case "case": driver = driver(w[1]); break;
                case "pipe": pipe(driver, w); print(driver, out); break;
                case "advance":
                    driver.advanceWallClockTime(Duration.ofMillis(Long.parseLong(w[1])));
                    print(driver, out);
                    break;
                default:
                    out.println("dropped " + dropped(driver));
                    out.flush();
                    driver.close();
            }
        }
    }

    static TopologyTestDriver driver(String name) {
        StreamsBuilder builder = new StreamsBuilder();
        builder.addStateStore(Stores.keyValueStoreBuilder(Stores.inMemoryKeyValueStore("c"), STRING, LONG));
        builder.addStateStore(Stores.windowStoreBuilder(
            Stores.inMemoryWindowStore("w", Duration.ofMillis(12), Duration.ofMillis(1), false), STRING, LONG));
        KStream<String, Long> in = builder.stream("in");
        build(name, in).to("out");
        Properties config = new Properties();
        config.put(StreamsConfig.APPLICATION_ID_CONFIG, "oracle");
        config.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, "nowhere:1");
        config.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
        config.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, STRING.getClass());
        config.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, LONG.getClass());
        return new TopologyTestDriver(builder.build(), config, Instant.ofEpochMilli(100));
    }

    static KStream<String, Long> build(String name, KStream<String, Long> in) {
        KStream<String, Long> even = in.filter((k, v) -> v == null || v % 2 == 0);
        switch (name) {
            case "counts": return in.process(Counts::new, "c");
            case "filtered": return even.process(Counts::new, "c");
            case "rings": return in.process(Rings::new);
            case "recent": return in.process(Recent::new, "w");
            case "alarms": return even.process(Alarms::new, "c");
            case "shared": return even.process(Counts::new, "c").merge(in.process(Reader::new, "c"));
            case "chain": return in.process(Counts::new, "c").process(Reader::new, "c");
            case "rung": return in.process(Rings::new).process(Counts::new, "c");
            case "values":
                return in.processValues(Values::new, "c").groupByKey(Grouped.with(STRING, LONG))
                    .count().toStream();
            case "several":
                return in.process(Recent::new, "w").merge(even.process(Rings::new))
                    .merge(in.process(Counts::new, "c"));
            default: throw new IllegalArgumentException(name);
        }
    }

    static String key(String key) {
        return key == null ? "none" : key;
    }

    static class Counts extends ContextualProcessor<String, Long, String, Long> {
        KeyValueStore<String, Long> counts;

        @Override public void init(ProcessorContext<String, Long> context) {
            super.init(context);
            counts = context.getStateStore("c");
            context.schedule(Duration.ofMillis(10), PunctuationType.STREAM_TIME, this::report);
        }

        @Override public void process(Record<String, Long> record) {
            String key = key(record.key());
            Long found = counts.get(key);
            long count = found == null ? 1 : found + 1;
            if (record.value() == null) {
                counts.delete(key);
            } else {
                counts.put(key, count);
            }
            context().forward(record.withValue(count));
            if (count % 3 == 0) {
                context().forward(new Record<>("third", count, record.timestamp() + 1));
            }
        }

        void report(long time) {
            try (KeyValueIterator<String, Long> all = counts.range(null, "b")) {
                while (all.hasNext()) {
                    KeyValue<String, Long> next = all.next();
                    context().forward(new Record<>(next.key, -next.value, time));
                }
            }
        }
    }

    static class Rings extends ContextualProcessor<String, Long, String, Long> {
        @Override public void init(ProcessorContext<String, Long> context) {
            super.init(context);
            ring(4, PunctuationType.STREAM_TIME);
            ring(8, PunctuationType.STREAM_TIME);
            ring(8, PunctuationType.STREAM_TIME);
            ring(12, PunctuationType.STREAM_TIME);
            ring(7, PunctuationType.WALL_CLOCK_TIME);
            ring(14, PunctuationType.WALL_CLOCK_TIME);
        }

        int rings = 0;

        void ring(int period, PunctuationType type) {
            int number = rings++;
            context().schedule(Duration.ofMillis(period), type,
                time -> context().forward(new Record<>("ring" + number, context().currentStreamTimeMs(), time)));
        }

        @Override public void process(Record<String, Long> record) {
            context().forward(record.withValue(context().currentStreamTimeMs()));
        }
    }

    static class Recent extends ContextualProcessor<String, Long, String, Long> {
        WindowStore<String, Long> recent;

        @Override public void init(ProcessorContext<String, Long> context) {
            super.init(context);
            recent = context.getStateStore("w");
        }

        @Override public void process(Record<String, Long> record) {
            recent.put(key(record.key()), record.value(), record.timestamp());
            long sum = 0;
            try (WindowStoreIterator<Long> found =
                    recent.fetch(key(record.key()), Math.max(0, record.timestamp() - 8), record.timestamp() + 2)) {
                while (found.hasNext()) {
                    KeyValue<Long, Long> next = found.next();
                    sum = sum * 31 + next.key * 7 + next.value;
                }
            }
            context().forward(record.withValue(sum));
        }
    }

    static class Alarms extends ContextualProcessor<String, Long, String, Long> {
        KeyValueStore<String, Long> set;

        @Override public void init(ProcessorContext<String, Long> context) {
            super.init(context);
            set = context.getStateStore("c");
        }

        @Override public void process(Record<String, Long> record) {
            String key = key(record.key());
            if (set.get(key) != null) {
                return;
            }
            set.put(key, 0L);
            PunctuationType type = record.value() == null ? PunctuationType.WALL_CLOCK_TIME : PunctuationType.STREAM_TIME;
            Cancellable[] timer = new Cancellable[1];
            timer[0] = context().schedule(Duration.ofMillis(3), type, time -> {
                long count = set.get(key) + 1;
                set.put(key, count);
                context().forward(new Record<>(key, count, time));
                if (count == 3) {
                    timer[0].cancel();
                    set.delete(key);
                }
            });
        }
    }

    static class Reader extends ContextualProcessor<String, Long, String, Long> {
        KeyValueStore<String, Long> counts;

        @Override public void init(ProcessorContext<String, Long> context) {
            super.init(context);
            counts = context.getStateStore("c");
        }

        @Override public void process(Record<String, Long> record) {
            long sum = 0;
            try (KeyValueIterator<String, Long> all = counts.all()) {
                while (all.hasNext()) {
                    sum = sum * 31 + all.next().value;
                }
            }
            context().forward(record.withKey("read").withValue(sum));
        }
    }

    static class Values extends ContextualFixedKeyProcessor<String, Long, Long> {
        KeyValueStore<String, Long> latest;

        @Override public void init(FixedKeyProcessorContext<String, Long> context) {
            super.init(context);
            latest = context.getStateStore("c");
        }

        @Override public void process(FixedKeyRecord<String, Long> record) {
            Long before = latest.get(key(record.key()));
            latest.put(key(record.key()), record.value());
            if (before == null || !before.equals(record.value())) {
                context().forward(record);
            }
        }
    }

    static void pipe(TopologyTestDriver driver, String[] w) {
        RecordHeaders headers = new RecordHeaders();
        if (!w[4].equals("-")) {
            headers.add(w[4], w[4].getBytes(StandardCharsets.UTF_8));
        }
        driver.createInputTopic("in", STRING.serializer(), LONG.serializer()).pipeInput(new TestRecord<>(
            w[1].equals("-") ? null : w[1], w[2].equals("-") ? null : Long.valueOf(w[2]), headers,
            Long.parseLong(w[3])));
    }

    static void print(TopologyTestDriver driver, PrintStream out) {
        TestOutputTopic<String, Long> output =
            driver.createOutputTopic("out", STRING.deserializer(), LONG.deserializer());
        for (TestRecord<String, Long> record : output.readRecordsToList()) {
            StringBuilder told = new StringBuilder();
            for (Header header : record.headers()) {
                told.append(header.key()).append(',');
            }
            out.println(String.join(" ", String.valueOf(record.key()), String.valueOf(record.value()),
                record.timestamp().toString(), told.length() == 0 ? "-" : told.toString()));
        }
        out.println(".");
    }

    static long dropped(TopologyTestDriver driver) {
        return driver.metrics().entrySet().stream()
            .filter(entry -> entry.getKey().name().equals("dropped-records-total"))
            .filter(entry -> entry.getKey().group().equals("stream-task-metrics"))
            .mapToLong(entry -> Math.round((Double) entry.getValue().metricValue())).sum();
    }
}
