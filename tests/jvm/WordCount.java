import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.LongDeserializer;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Produced;

/**
 * WordCount BOOTSTRAP INPUT OUTPUT GUARANTEE STATE_DIR: counts words with Kafka Streams, twice: the
 * second instance loses its state directory and restores it from the changelog.
 */
public class WordCount {
    static String bootstrap;

    public static void main(String[] args) throws Exception {
        bootstrap = args[0];
        String input = args[1], output = args[2], guarantee = args[3], stateDir = args[4];
        write(input, 100);
        Map<String, Long> expected = new HashMap<>();
        for (int turn = 1; turn <= 2; turn++) {
            StreamsBuilder builder = new StreamsBuilder();
            builder.<String, String>stream(input)
                .flatMapValues(line -> List.of(line.split(" ")))
                .groupBy((key, word) -> word, Grouped.with(Serdes.String(), Serdes.String()))
                .count()
                .toStream()
                .to(output, Produced.with(Serdes.String(), Serdes.Long()));
            Properties config = config(input, guarantee, stateDir + turn);
            try (KafkaStreams streams = new KafkaStreams(builder.build(), config)) {
                streams.start();
                for (String word : List.of("the", "word0", "word1", "word2")) {
                    expected.put(word, turn * (word.equals("the") ? 100L : word.equals("word0") ? 34L : 33L));
                }
                awaitCounts(output, expected);
            }
            if (turn == 1) {
                write(input, 100);
            }
        }
        System.out.println("done");
    }

    static Properties config(String input, String guarantee, String stateDir) {
        Properties config = new Properties();
        config.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap);
        config.put(StreamsConfig.APPLICATION_ID_CONFIG, "app-" + input);
        config.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, guarantee);
        config.put(StreamsConfig.STATE_DIR_CONFIG, stateDir);
        config.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 100);
        config.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        config.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        config.put("auto.offset.reset", "earliest");
        config.put("session.timeout.ms", "6000");  // the first never leaves; the second waits so long
        config.put("heartbeat.interval.ms", "100");
        return config;
    }

    static void write(String topic, int lines) throws Exception {
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(config, new StringSerializer(), new StringSerializer())) {
            List<Future<?>> sent = new ArrayList<>();
            for (int i = 0; i < lines; i++) {
                sent.add(producer.send(new ProducerRecord<>(topic, "line" + i, "the word" + i % 3)));
            }
            for (Future<?> future : sent) {
                future.get();
            }
        }
    }

    /** Reads committed counts from the beginning until the last of every word is as expected. */
    static void awaitCounts(String topic, Map<String, Long> expected) {
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        config.put("isolation.level", "read_committed");
        Map<String, Long> counts = new HashMap<>();
        try (KafkaConsumer<String, Long> consumer =
                new KafkaConsumer<>(config, new StringDeserializer(), new LongDeserializer())) {
            List<TopicPartition> places = consumer.partitionsFor(topic).stream()
                .map(p -> new TopicPartition(topic, p.partition())).toList();
            consumer.assign(places);
            consumer.seekToBeginning(places);
            long deadline = System.currentTimeMillis() + 60_000;
            while (!counts.equals(expected)) {
                if (System.currentTimeMillis() > deadline) {
                    throw new AssertionError(counts + ", not " + expected);
                }
                for (ConsumerRecord<String, Long> r : consumer.poll(Duration.ofMillis(200))) {
                    Long before = counts.put(r.key(), r.value());
                    if (before != null && before > r.value()) {
                        throw new AssertionError(r.key() + " fell from " + before + " to " + r.value());
                    }
                }
            }
        }
    }
}
