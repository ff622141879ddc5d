import java.time.Duration;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.kstream.WindowedSerdes;

/**
 * Mixed BOOTSTRAP STATE_DIR: Kafka Streams beside workers of ours on one broker, exactly once, until
 * its standard input ends. It reads what they write, and writes what they read.
 */
public class Mixed {
    public static void main(String[] args) throws Exception {
        Serde<String> string = Serdes.String();
        Serde<Long> number = Serdes.Long();
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream("left", Consumed.with(string, number))
            .mapValues(value -> value * 2)
            .to("doubled", Produced.with(string, number));
        builder.stream("left", Consumed.with(string, number))
            .filter((key, value) -> value % 5 != 2)
            .groupByKey(Grouped.with(string, number))
            .windowedBy(SessionWindows.ofInactivityGapWithNoGrace(Duration.ofMillis(150)))
            .count()
            .toStream()
            .to("sessions-of-java",
                Produced.with(WindowedSerdes.sessionWindowedSerdeFrom(String.class), number));
        Serde<Windowed<String>> windowed = WindowedSerdes.timeWindowedSerdeFrom(String.class, 200L);
        builder.stream("windows-of-ours", Consumed.with(windowed, number))
            .map((key, value) -> KeyValue.pair(key.key() + "@" + key.window().start(), value))
            .to("windows-by-java", Produced.with(string, number));
        Properties config = new Properties();
        config.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, args[0]);
        config.put(StreamsConfig.APPLICATION_ID_CONFIG, "mixed-java");
        config.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        config.put(StreamsConfig.STATE_DIR_CONFIG, args[1]);
        config.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 100);
        config.put("auto.offset.reset", "earliest");
        try (KafkaStreams streams = new KafkaStreams(builder.build(), config)) {
            streams.start();
            while (System.in.read() >= 0) {
            }
        }
    }
}
