import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeSet;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.LongSerializer;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.TestInputTopic;
import org.apache.kafka.streams.TestOutputTopic;
import org.apache.kafka.streams.TopologyTestDriver;
import org.apache.kafka.streams.kstream.*;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.test.TestRecord;

/**
 * What Kafka Streams makes of topologies and records that come on standard input, one record at a
 * time: cases of lines `ID OPERATOR PARENT ARGUMENT ...`, then `pipe TOPIC KEY VALUE TIMESTAMP HEADER`,
 * then `end`. Keys are strings, values longs, `-` is null. After each `pipe` come the records it led
 * to, as `TOPIC KEY VALUE TIMESTAMP HEADERS` with key and value in hex, and a line with a point.
 */
@SuppressWarnings({"unchecked", "rawtypes", "deprecation"})
public class Oracle {
    static final Serde<String> STRING = Serdes.String();
    static final Serde<Long> LONG = Serdes.Long();

    StreamsBuilder builder = new StreamsBuilder();
    Map<String, Object> nodes = new HashMap<>();
    Map<String, Long> sizes = new HashMap<>(); // of the windows in a node's keys
    TreeSet<String> outputs = new TreeSet<>();
    Map<String, TestInputTopic<String, Long>> inputs = new HashMap<>();
    TopologyTestDriver driver;

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        Oracle oracle = new Oracle();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ");
            if (words[0].equals("pipe")) {
                oracle.pipe(words, out);
            } else if (words[0].equals("end")) {
                out.println("dropped " + oracle.dropped());
                out.flush();
                oracle.driver.close();
                oracle = new Oracle();
            } else {
                oracle.build(words);
            }
        }
    }

    // Building

    void build(String[] w) {
        String id = w[0], parent = w.length > 2 ? w[2] : null;
        Object above = parent == null ? null : nodes.get(parent);
        KStream<Object, Long> stream = above instanceof KStream ? (KStream<Object, Long>) above : null;
        KTable<Object, Long> table = above instanceof KTable ? (KTable<Object, Long>) above : null;
        Object made = null;
        Long size = sizes.get(parent);
        switch (w[1]) {
            case "stream": made = builder.stream(w[2], Consumed.with(STRING, LONG)); break;
            case "table":
                made = w[3].equals("-")
                    ? builder.table(w[2], Consumed.with(STRING, LONG))
                    : builder.table(w[2], Consumed.with(STRING, LONG), store(w[3], STRING));
                break;
            case "filter": made = stream.filter((k, v) -> test(w[3], v)); break;
            case "filter_not": made = stream.filterNot((k, v) -> test(w[3], v)); break;
            case "map": made = stream.mapValues(v -> map(w[3], v)); break;
            case "flat_map": made = stream.flatMapValues(v -> several(v)); break;
            case "select_key": made = stream.selectKey((k, v) -> key(w[3], v)); size = null; break;
            case "map_pairs":
                made = stream.map((k, v) -> KeyValue.pair(key("keep", v), map("inc", v)));
                size = null;
                break;
            case "flat_map_pairs":
                made = stream.flatMap((k, v) -> pairs(v));
                size = null;
                break;
            case "branch": {
                BranchedKStream<Object, Long> split = stream.split(Named.as(id + "-"));
                split = split.branch((k, v) -> test(w[3], v)).branch((k, v) -> test(w[4], v));
                Map<String, KStream<Object, Long>> arms = split.defaultBranch();
                for (int arm = 0; arm < 3; arm++) {
                    nodes.put(id + "." + arm, arms.get(id + "-" + (arm + 1) % 3));
                    sizes.put(id + "." + arm, size);
                }
                return;
            }
            case "merge": made = stream.merge((KStream<Object, Long>) nodes.get(w[3])); break;
            case "repartition":
                made = stream.repartition(Repartitioned.with(keys(size), LONG).withName("r" + id));
                break;
            case "to_table":
                made = w[3].equals("-")
                    ? stream.toTable(Materialized.with(keys(size), LONG))
                    : stream.toTable(store(w[3], keys(size)));
                break;
            case "group_by":
                made = stream.groupBy((k, v) -> key(w[3], v), Grouped.with("g" + id, (Serde) STRING, LONG));
                size = null;
                break;
            case "group_by_key": made = stream.groupByKey(Grouped.with("g" + id, keys(size), LONG)); break;
            case "window": {
                long length = Long.parseLong(w[3]), advance = Long.parseLong(w[4]);
                Duration grace = Duration.ofMillis(Long.parseLong(w[5]));
                made = ((KGroupedStream<Object, Long>) above).windowedBy(
                    TimeWindows.ofSizeAndGrace(Duration.ofMillis(length), grace)
                        .advanceBy(Duration.ofMillis(advance)));
                size = length;
                break;
            }
            case "session": made = session((KGroupedStream) above, w); size = SESSION; break;
            case "unlimited": made = unlimited((KGroupedStream) above, w); size = Long.MAX_VALUE; break;
            case "sliding": made = sliding((KGroupedStream) above, w); size = Long.parseLong(w[3]); break;
            case "count": case "reduce": case "aggregate": made = aggregate(w[1], above, size); break;
            case "table_filter": {
                Materialized store = w[4].equals("-") ? null : store(w[4], keys(size));
                Predicate<Object, Long> predicate = (k, v) -> test(w[3], v);
                made = store == null ? table.filter(predicate) : table.filter(predicate, store);
                break;
            }
            case "table_map": {
                Materialized store = w[4].equals("-") ? null : store(w[4], keys(size));
                ValueMapper<Long, Long> mapper = v -> map(w[3], v);
                made = store == null ? table.mapValues(mapper) : table.mapValues(mapper, store);
                break;
            }
            case "table_group_by":
                made = table.groupBy(
                    (k, v) -> KeyValue.pair((Object) key(w[3], v), v), Grouped.with((Serde) STRING, LONG));
                size = null;
                break;
            case "stream_join": made = joinStreams(stream, (KStream<Object, Long>) nodes.get(w[3]), w); break;
            case "to_stream": made = table.toStream(); break;
            case "join_table": made = joinTable(stream, (KTable<Object, Long>) nodes.get(w[3]), w[4], keys(size)); break;
            case "versioned":
                made = builder.table(w[2], Consumed.with(STRING, LONG), ((Materialized) Materialized.as(
                    Stores.persistentVersionedKeyValueStore(id, Duration.ofMillis(Long.parseLong(w[3])))))
                    .withKeySerde(STRING).withValueSerde((Serde) LONG));
                break;
            case "join_grace": {
                Joined<Object, Long, Long> joined = Joined.with((Serde) STRING, LONG, LONG)
                    .withGracePeriod(Duration.ofMillis(Long.parseLong(w[5])));
                KTable<Object, Long> right = (KTable<Object, Long>) nodes.get(w[3]);
                made = w[4].equals("left")
                    ? stream.leftJoin(right, (l, r) -> both(l, r), joined)
                    : stream.join(right, (l, r) -> both(l, r), joined);
                break;
            }
            case "table_join": made = joinTables(table, (KTable<Object, Long>) nodes.get(w[3]), w, keys(size)); break;
            case "final":
                made = ((KTable) above)
                    .suppress((Suppressed) Suppressed.untilWindowCloses(Suppressed.BufferConfig.unbounded()))
                    .toStream();
                break;
            case "suppress": made = suppress((KTable) above, w); break;
            case "global": made = builder.globalTable(w[2], Consumed.with(STRING, LONG)); break;
            case "global_join": made = joinGlobal(stream, (GlobalKTable<String, Long>) nodes.get(w[3]), w[4], w[5]); break;
            case "foreign_join": made = joinForeign(table, (KTable<Object, Long>) nodes.get(w[3]), w[4]); break;
            case "cogroup":
                made = cogroup((KGroupedStream) above, (KGroupedStream) nodes.get(w[3]), w);
                size = w[4].equals("-") ? null : Long.valueOf(w[4]);
                break;
            case "to":
                stream.to(w[3], Produced.with(keys(size), LONG));
                outputs.add(w[3]);
                return;
            default: throw new IllegalArgumentException(w[1]);
        }
        nodes.put(id, made);
        sizes.put(id, size);
    }

    static Object aggregate(String word, Object above, Long size) {
        Reducer<Long> reducer = (a, v) -> reduce(a, v);
        Aggregator<Object, Long, Long> add = (k, v, a) -> fold(a, v);
        if (above instanceof KGroupedStream) {
            KGroupedStream<Object, Long> grouped = (KGroupedStream<Object, Long>) above;
            Materialized store = Materialized.with(keys(size), LONG);
            return word.equals("count") ? grouped.count(store)
                : word.equals("reduce") ? grouped.reduce(reducer, store)
                : grouped.aggregate(() -> 100L, add, store);
        }
        if (above instanceof TimeWindowedKStream) {
            TimeWindowedKStream<Object, Long> grouped = (TimeWindowedKStream<Object, Long>) above;
            Materialized store = Materialized.with((Serde) STRING, LONG);
            return word.equals("count") ? grouped.count(store)
                : word.equals("reduce") ? grouped.reduce(reducer, store)
                : grouped.aggregate(() -> 100L, add, store);
        }
        if (above instanceof SessionWindowedKStream) {
            return aggregateSessions(word, (SessionWindowedKStream) above);
        }
        KGroupedTable<Object, Long> grouped = (KGroupedTable<Object, Long>) above;
        Materialized store = Materialized.with((Serde) STRING, LONG);
        return word.equals("count") ? grouped.count(store)
            : word.equals("reduce") ? grouped.reduce((a, v) -> a + v, (a, v) -> a - v, store)
            : grouped.aggregate(() -> 100L, add, (k, v, a) -> unfold(a, v), store);
    }

    static Serde keys(Long size) {
        return size == null ? STRING
            : size.equals(SESSION) ? WindowedSerdes.sessionWindowedSerdeFrom(String.class)
            : WindowedSerdes.timeWindowedSerdeFrom(String.class, size);
    }

    static Materialized store(String name, Serde key) {
        return Materialized.as(Stores.inMemoryKeyValueStore(name)).withKeySerde(key).withValueSerde((Serde) LONG);
    }

    // The users' functions; test_streams_oracle.py has the same. Without a cache Kafka Streams tells
    // those below an aggregate of a new row that it replaces what the initializer gave: 0 or 100.
    // Nobody wants that, so multiples of 10 pass no filter of a table and are in no group of one.

    static boolean test(String name, Long v) {
        switch (name) {
            case "even": return v != null && v % 2 == 0 && v % 10 != 0;
            case "positive": return v == null || v > 0 && v % 10 != 0;
            case "null": return v == null;
            default: throw new IllegalArgumentException(name);
        }
    }

    static Long map(String name, Long v) {
        if (v == null) {
            return name.equals("fill") ? 7L : null;
        }
        return name.equals("holes") && Math.floorMod(v, 3L) == 0 ? null : v + 10;
    }

    static List<Long> several(Long v) {
        List<Long> found = new ArrayList<>();
        for (long i = 0; v != null && i < Math.floorMod(v, 3L); i++) {
            found.add(i == 1 ? null : v + i);
        }
        return found;
    }

    static List<KeyValue<Object, Long>> pairs(Long v) {
        List<KeyValue<Object, Long>> found = new ArrayList<>();
        for (Long each : several(v)) {
            found.add(KeyValue.pair((Object) key("keep", each), v));
        }
        return found;
    }

    static String key(String name, Long v) {
        switch (name) {
            case "keep": return v == null ? "none" : "k" + Math.floorMod(v, 3L);
            case "holes": return v == null || v % 2 == 0 ? null : "k" + Math.floorMod(v, 3L);
            case "rows": return v == null || v % 10 == 0 ? null : "k" + Math.floorMod(v, 3L);
            case "one": return "one";
            default: throw new IllegalArgumentException(name);
        }
    }

    static Long reduce(Long a, Long v) {
        if (v == null) {
            return a;
        }
        long sum = a * 3 + v;
        return Math.floorMod(sum, 7L) == 0 ? null : Math.floorMod(sum, 1000L);
    }

    static Long fold(Long a, Long v) {
        long sum = v == null ? a + 1 : a * 2 + v;
        return Math.floorMod(sum, 5L) == 0 ? null : Math.floorMod(sum, 1000L);
    }

    static Long unfold(Long a, Long v) {
        return Math.floorMod(a - v, 6L) == 0 ? null : Math.floorMod(a - v, 1000L);
    }

    // Running

    void pipe(String[] w, PrintStream out) {
        if (driver == null) {
            Properties config = new Properties();
            config.put(StreamsConfig.APPLICATION_ID_CONFIG, "oracle");
            config.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, "nowhere:1");
            config.put(StreamsConfig.STATE_DIR_CONFIG, // of its own: several may run at once
                System.getProperty("java.class.path").split(":")[0] + "/state-" + ProcessHandle.current().pid());
            config.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, Integer.getInteger("cache", 0));
            config.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, STRING.getClass());
            config.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, LONG.getClass());
            config.put(StreamsConfig.DEFAULT_DSL_STORE_CONFIG, StreamsConfig.IN_MEMORY);
            String state = "/kafka-streams-" + ProcessHandle.current().pid(); // others may run one, too
            config.put(StreamsConfig.STATE_DIR_CONFIG, System.getProperty("java.io.tmpdir") + state);
            driver = new TopologyTestDriver(builder.build(), config, Instant.ofEpochMilli(0));
        }
        TestInputTopic<String, Long> input = inputs.computeIfAbsent(
            w[1], topic -> driver.createInputTopic(topic, new StringSerializer(), new LongSerializer()));
        RecordHeaders headers = new RecordHeaders();
        if (!w[5].equals("-")) {
            headers.add(w[5], w[5].getBytes(StandardCharsets.UTF_8));
        }
        String key = w[2].equals("-") ? null : w[2];
        Long value = w[3].equals("-") ? null : Long.valueOf(w[3]);
        input.pipeInput(new TestRecord<>(key, value, headers, Long.parseLong(w[4])));
        for (String topic : outputs) {
            TestOutputTopic<byte[], byte[]> output =
                driver.createOutputTopic(topic, new ByteArrayDeserializer(), new ByteArrayDeserializer());
            for (TestRecord<byte[], byte[]> record : output.readRecordsToList()) {
                StringBuilder told = new StringBuilder();
                for (Header header : record.headers()) {
                    told.append(header.key()).append(',');
                }
                out.println(String.join(" ", topic, hex(record.key()), hex(record.value()),
                    record.timestamp().toString(), told.length() == 0 ? "-" : told.toString()));
            }
        }
        out.println(".");
    }

    static String hex(byte[] data) {
        if (data == null) {
            return "-";
        }
        StringBuilder told = new StringBuilder("x");
        for (byte each : data) {
            told.append(String.format("%02x", each));
        }
        return told.toString();
    }

    long dropped() {
        return driver == null ? 0 : driver.metrics().entrySet().stream()
            .filter(entry -> entry.getKey().name().equals("dropped-records-total"))
            .filter(entry -> entry.getKey().group().equals("stream-task-metrics"))
            .mapToLong(entry -> Math.round((Double) entry.getValue().metricValue())).sum();
    }

    // Several streams in one table

    static KTable cogroup(KGroupedStream<Object, Long> one, KGroupedStream<Object, Long> two, String[] w) {
        Aggregator<Object, Long, Long> add = (k, v, a) -> fold(a, v);
        Aggregator<Object, Long, Long> other = (k, v, a) -> fold(a, v == null ? null : v + 1);
        CogroupedKStream<Object, Long> together = one.cogroup(add).cogroup(two, other);
        Materialized store = Materialized.with((Serde) STRING, LONG);
        if (w[4].equals("-")) {
            return together.aggregate(() -> 100L, store);
        }
        TimeWindows windows = TimeWindows
            .ofSizeAndGrace(Duration.ofMillis(Long.parseLong(w[4])), Duration.ofMillis(Long.parseLong(w[6])))
            .advanceBy(Duration.ofMillis(Long.parseLong(w[5])));
        // An input that lags behind finds the rows of the others only as long as the store keeps them.
        return together.windowedBy(windows).aggregate(() -> 100L, store.withRetention(Duration.ofDays(1)));
    }

    // Rows held back

    static KTable suppress(KTable table, String[] w) {
        Suppressed.BufferConfig buffer = w[4].equals("-")
            ? Suppressed.BufferConfig.unbounded()
            : Suppressed.BufferConfig.maxRecords(Long.parseLong(w[4])).emitEarlyWhenFull();
        return table.suppress(Suppressed.untilTimeLimit(Duration.ofMillis(Long.parseLong(w[3])), buffer));
    }

    // Joins of streams

    static KStream<Object, Long> joinStreams(KStream<Object, Long> left, KStream<Object, Long> right, String[] w) {
        JoinWindows window = JoinWindows
            .ofTimeDifferenceAndGrace(Duration.ofDays(1), Duration.ofMillis(Long.parseLong(w[7])))
            .before(Duration.ofMillis(Long.parseLong(w[5])))
            .after(Duration.ofMillis(Long.parseLong(w[6])));
        ValueJoiner<Long, Long, Long> pair = (l, r) -> (l == null ? 900 : l + 10) * 1000 + (r == null ? 900 : r + 10);
        // In RocksDB a row is refused by segments of a minute and more, in memory as soon as nobody sees it.
        Duration size = Duration.ofMillis(window.size()), kept = size.plusMillis(window.gracePeriodMs());
        StreamJoined<Object, Long, Long> serdes = StreamJoined.with((Serde) STRING, LONG, LONG)
            .withThisStoreSupplier(Stores.inMemoryWindowStore(w[0] + "-left", kept, size, true))
            .withOtherStoreSupplier(Stores.inMemoryWindowStore(w[0] + "-right", kept, size, true));
        switch (w[4]) {
            case "inner": return left.join(right, pair, window, serdes);
            case "left": return left.leftJoin(right, pair, window, serdes);
            default: return left.outerJoin(right, pair, window, serdes);
        }
    }

    // Joins with tables

    static Object joinTable(KStream<Object, Long> stream, KTable<Object, Long> table, String how, Serde key) {
        Joined<Object, Long, Long> joined = Joined.with(key, LONG, LONG);
        return how.equals("left")
            ? stream.leftJoin(table, (l, r) -> both(l, r), joined)
            : stream.join(table, (l, r) -> both(l, r), joined);
    }

    static Object joinTables(KTable<Object, Long> left, KTable<Object, Long> right, String[] w, Serde key) {
        ValueJoiner<Long, Long, Long> joiner = (l, r) -> both(l, r);
        Materialized store = w[5].equals("-") ? null : store(w[5], key);
        switch (w[4]) {
            case "left": return store == null ? left.leftJoin(right, joiner) : left.leftJoin(right, joiner, store);
            case "outer": return store == null ? left.outerJoin(right, joiner) : left.outerJoin(right, joiner, store);
            default: return store == null ? left.join(right, joiner) : left.join(right, joiner, store);
        }
    }

    static Long both(Long left, Long right) {
        long sum = (left == null ? 1 : left * 3) + (right == null ? 5 : right);
        return Math.floorMod(sum, 7L) == 0 ? null : sum;
    }

    // Sessions and sliding windows

    static final Long SESSION = -1L; // in the place of a window's size

    static Object session(KGroupedStream<Object, Long> above, String[] w) {
        return above.windowedBy(SessionWindows.ofInactivityGapAndGrace(
            Duration.ofMillis(Long.parseLong(w[3])), Duration.ofMillis(Long.parseLong(w[4]))));
    }

    static Object sliding(KGroupedStream<Object, Long> above, String[] w) {
        return above.windowedBy(SlidingWindows.ofTimeDifferenceAndGrace(
            Duration.ofMillis(Long.parseLong(w[3])), Duration.ofMillis(Long.parseLong(w[4]))));
    }

    static Object unlimited(KGroupedStream<Object, Long> above, String[] w) {
        return above.windowedBy(UnlimitedWindows.of().startOn(Instant.ofEpochMilli(Long.parseLong(w[3]))));
    }

    static Object aggregateSessions(String word, SessionWindowedKStream<Object, Long> grouped) {
        Materialized store = Materialized.with((Serde) STRING, LONG);
        Reducer<Long> reducer = (a, v) -> reduce(a, v);
        Aggregator<Object, Long, Long> add = (k, v, a) -> fold(a, v);
        Merger<Object, Long> merger = (k, a, b) -> Math.floorMod(a * 2 + b, 1000L);
        return word.equals("count") ? grouped.count(store)
            : word.equals("reduce") ? grouped.reduce(reducer, store)
            : grouped.aggregate(() -> 100L, add, merger, store);
    }

    // Joins with global tables and by foreign keys

    static final String[] NAMES = {"a", "b", "ab", "", null};

    static String named(Long v) {
        return v == null ? null : NAMES[(int) Math.floorMod(v, 5L)];
    }

    static Object joinGlobal(KStream<Object, Long> stream, GlobalKTable<String, Long> table, String how, String by) {
        KeyValueMapper<Object, Long, String> key = (k, v) -> by.equals("own") ? (String) k : named(v);
        ValueJoiner<Long, Long, Long> joiner = (l, r) -> both(l, r);
        return how.equals("left") ? stream.leftJoin(table, key, joiner) : stream.join(table, key, joiner);
    }

    static Object joinForeign(KTable<Object, Long> left, KTable<Object, Long> right, String how) {
        java.util.function.Function<Long, Object> key = v -> named(v);
        ValueJoiner<Long, Long, Long> joiner = (l, r) -> both(l, r);
        return how.equals("left") ? left.leftJoin(right, key, joiner) : left.join(right, key, joiner);
    }
}
