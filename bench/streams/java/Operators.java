import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.sun.management.OperatingSystemMXBean;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.HashMap;
import java.util.Locale;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.LongAdder;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.*;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.SessionStore;
import org.apache.kafka.streams.state.WindowStore;

/**
 * Joins, sessions and sliding windows in Kafka Streams: one topology over loaded topics to their
 * end, then one line of JSON. Our side of each is in operators.py.
 *
 * Arguments are NAME=VALUE: boot, in (topics with commas between, the left one first), out, app,
 * topo, n (how many records all inputs have), dir (for RocksDB), threads, cache (bytes), eos (0, 1).
 *
 * Rates count from the first record that is read. They count to the last change of any counter, as
 * a foreign-key join goes on in topics of its own once its inputs are read.
 */
public final class Operators {
    static final LongAdder READ = new LongAdder();
    static final LongAdder WRITTEN = new LongAdder();
    static final ObjectMapper MAPPER = new ObjectMapper();
    static final Serde<String> TEXT = Serdes.String();
    static final Duration RETENTION = Duration.ofHours(1);
    static final Duration MOVING = Duration.ofSeconds(10); // windows of the join, sliding ones, grace
    static final Duration GAP = Duration.ofSeconds(30);
    static final long QUIET_NS = 2_000_000_000L;
    static final long STUCK_NS = 60_000_000_000L;

    static final Serde<ObjectNode> JSON = Serdes.serdeFrom(
        (topic, node) -> {
            try {
                return node == null ? null : MAPPER.writeValueAsBytes(node);
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
        },
        (topic, bytes) -> {
            try {
                return bytes == null ? null : (ObjectNode) MAPPER.readTree(bytes);
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
        });

    record Sum(double sum, long count) {}

    static final Serde<Sum> SUM = Serdes.serdeFrom(
        (topic, s) -> s == null ? null : ByteBuffer.allocate(16).putDouble(s.sum()).putLong(s.count()).array(),
        (topic, bytes) -> {
            if (bytes == null) return null;
            ByteBuffer buffer = ByteBuffer.wrap(bytes);
            return new Sum(buffer.getDouble(), buffer.getLong());
        });

    static <V> KStream<String, V> read(StreamsBuilder builder, String topic, Serde<V> value) {
        return builder.stream(topic, Consumed.with(TEXT, value)).peek((k, v) -> READ.increment());
    }

    static <K, V> void write(KStream<K, V> stream, String topic, Serde<K> key, Serde<V> value) {
        stream.peek((k, v) -> WRITTEN.increment()).to(topic, Produced.with(key, value));
    }

    static KTable<String, ObjectNode> table(StreamsBuilder builder, String topic) {
        var rows = Materialized.<String, ObjectNode, KeyValueStore<Bytes, byte[]>>as(topic + "-rows");
        return read(builder, topic, JSON).toTable(rows.withKeySerde(TEXT).withValueSerde(JSON));
    }

    static ObjectNode limited(ObjectNode left, ObjectNode user) {
        ObjectNode joined = MAPPER.createObjectNode();
        joined.set("id", left.get("id"));
        joined.set("amount", left.get("amount"));
        joined.set("limit", user.get("amount"));
        return joined;
    }

    static void streamJoin(StreamsBuilder builder, String[] in, String out) {
        var joined = read(builder, in[0], JSON).join(
            read(builder, in[1], JSON),
            (order, payment) -> {
                ObjectNode paid = MAPPER.createObjectNode();
                paid.set("id", order.get("id"));
                paid.set("user", order.get("user"));
                paid.set("amount", order.get("amount"));
                paid.set("paid", payment.get("amount"));
                return paid;
            },
            JoinWindows.ofTimeDifferenceWithNoGrace(MOVING),
            StreamJoined.with(TEXT, JSON, JSON));
        write(joined, out, TEXT, JSON);
    }

    static void tableJoin(StreamsBuilder builder, String[] in, String out) {
        var joined = read(builder, in[0], JSON)
            .join(table(builder, in[1]), Operators::limited, Joined.with(TEXT, JSON, JSON));
        write(joined, out, TEXT, JSON);
    }

    static void sessionCount(StreamsBuilder builder, String[] in, String out) {
        var rows = Materialized.<String, Long, SessionStore<Bytes, byte[]>>as("st").withRetention(RETENTION);
        var counts = read(builder, in[0], Serdes.ByteArray())
            .groupByKey(Grouped.with(TEXT, Serdes.ByteArray()))
            .windowedBy(SessionWindows.ofInactivityGapWithNoGrace(GAP))
            .count(rows.withKeySerde(TEXT).withValueSerde(Serdes.Long()));
        write(counts.toStream(), out, WindowedSerdes.sessionWindowedSerdeFrom(String.class), Serdes.Long());
    }

    static void slidingMean(StreamsBuilder builder, String[] in, String out) {
        var rows = Materialized.<String, Sum, WindowStore<Bytes, byte[]>>as("st").withRetention(RETENTION);
        var sums = read(builder, in[0], JSON)
            .groupByKey(Grouped.with(TEXT, JSON))
            .windowedBy(SlidingWindows.ofTimeDifferenceAndGrace(MOVING, MOVING))
            .aggregate(
                () -> new Sum(0, 0),
                (key, visit, sum) -> new Sum(sum.sum() + visit.get("amount").asDouble(), sum.count() + 1),
                rows.withKeySerde(TEXT).withValueSerde(SUM));
        var means = sums.toStream().mapValues(sum -> sum.sum() / sum.count());
        var key = WindowedSerdes.timeWindowedSerdeFrom(String.class, MOVING.toMillis());
        write(means, out, key, Serdes.Double());
    }

    static void foreignJoin(StreamsBuilder builder, String[] in, String out) {
        var joined = table(builder, in[0])
            .join(table(builder, in[1]), purchase -> purchase.get("user").textValue(), Operators::limited);
        write(joined.toStream(), out, TEXT, JSON);
    }

    static StreamsBuilder built(Map<String, String> given) {
        StreamsBuilder builder = new StreamsBuilder();
        String[] in = given.get("in").split(",");
        String out = given.get("out");
        switch (given.get("topo")) {
            case "stream-join" -> streamJoin(builder, in, out);
            case "table-join" -> tableJoin(builder, in, out);
            case "session-count" -> sessionCount(builder, in, out);
            case "sliding-mean" -> slidingMean(builder, in, out);
            case "foreign-join" -> foreignJoin(builder, in, out);
            default -> throw new IllegalArgumentException(given.get("topo"));
        }
        return builder;
    }

    static Properties settings(Map<String, String> given) {
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, given.get("app"));
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, given.get("boot"));
        settings.put(StreamsConfig.STATE_DIR_CONFIG, given.get("dir"));
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, given.getOrDefault("threads", "1"));
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, given.getOrDefault("cache", "10485760"));
        settings.put("auto.offset.reset", "earliest");
        if (given.getOrDefault("eos", "0").equals("1")) {
            settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        }
        return settings;
    }

    static double cpu() {
        var system = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        return system.getProcessCpuTime() / 1e9;
    }

    static double residentMb() throws IOException {
        for (String line : Files.readAllLines(Path.of("/proc/self/status"))) {
            if (line.startsWith("VmRSS")) return Long.parseLong(line.replaceAll("\\D", "")) / 1024.0;
        }
        return -1;
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, String> given = new HashMap<>();
        for (String argument : arguments) {
            int split = argument.indexOf('=');
            given.put(argument.substring(0, split), argument.substring(split + 1));
        }
        long n = Long.parseLong(given.get("n"));
        boolean hasInnerTopics = given.get("topo").equals("foreign-join");
        Properties settings = settings(given);
        KafkaStreams streams = new KafkaStreams(built(given).build(settings), settings);
        long started = System.nanoTime();
        streams.start();
        while (READ.sum() == 0) Thread.sleep(1);
        long begin = System.nanoTime();
        double cpuBefore = cpu();
        long half = 0;
        long changed = begin;
        double cpuChanged = cpuBefore;
        for (long read = 0, known = 0; ; Thread.sleep(2)) {
            read = READ.sum();
            long now = System.nanoTime();
            if (half == 0 && read >= n / 2) half = now;
            if (read + WRITTEN.sum() != known) {
                known = read + WRITTEN.sum();
                changed = now;
                cpuChanged = cpu();
            }
            if (read >= n && (!hasInnerTopics || now - changed > QUIET_NS)) break;
            if (now - changed > STUCK_NS) break;
        }
        long read = READ.sum();
        streams.close(Duration.ofSeconds(120));
        double seconds = (changed - begin) / 1e9;
        double closing = (System.nanoTime() - begin) / 1e9;
        System.out.println(String.format(
            Locale.ROOT,
            "{\"rec_s\": %.0f, \"second_half_rec_s\": %.0f, \"first_record_after_start_s\": %.3f, \"s_incl_close\": %.3f, "
                + "\"app_cpu_s_run\": %.2f, \"app_cpu_s\": %.2f, \"rss_mb\": %.0f, \"processed\": %d, \"out\": %d}",
            n / seconds, (n - n / 2) / ((changed - half) / 1e9), (begin - started) / 1e9, closing,
            cpuChanged - cpuBefore, cpu(), residentMb(), read, WRITTEN.sum()));
        System.out.flush();
        System.exit(0);
    }
}
