import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** RoundTrip BOOTSTRAP TOPIC GROUP CODEC: what a default producer sends is what consumers read. */
public class RoundTrip {
    static final long EPOCH_MS = 1_700_000_000_000L;
    static final int COUNT = 1_000;

    public static void main(String[] args) throws Exception {
        String bootstrap = args[0], topic = args[1], group = args[2], codec = args[3];
        produce(bootstrap, topic, codec);
        TopicPartition place = new TopicPartition(topic, 0);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(bootstrap, group)) {
            consumer.subscribe(List.of(topic));
            check(read(consumer, COUNT));
            consumer.commitSync(Map.of(place, new OffsetAndMetadata(600, "half of it")));
            OffsetAndMetadata kept = consumer.committed(java.util.Set.of(place)).get(place);
            expect(kept.offset() == 600 && kept.metadata().equals("half of it"), kept);
        }
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(bootstrap, group)) {
            consumer.subscribe(List.of(topic));
            expect(read(consumer, 400).get(0).offset() == 600, "goes on where it committed");
            consumer.seek(place, 990);
            expect(read(consumer, 10).get(9).offset() == 999, "seek");
            seekByTime(consumer, place);
            expect(consumer.beginningOffsets(List.of(place)).get(place) == 0, "beginning");
            expect(consumer.endOffsets(List.of(place)).get(place) == COUNT, "end");
            expect(consumer.listTopics().containsKey(topic), "topics");
        }
        System.out.println("done");
    }

    static void produce(String bootstrap, String topic, String codec) throws Exception {
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        config.put("compression.type", codec);
        config.put("linger.ms", "20");
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(
                config, new ByteArraySerializer(), new ByteArraySerializer())) {
            for (int i = 0; i < COUNT; i++) {
                ProducerRecord<byte[], byte[]> record =
                    new ProducerRecord<>(topic, 0, EPOCH_MS + i, key(i), value(i));
                if (i % 3 == 0) {
                    record.headers().add(new RecordHeader("n", bytes("" + i)));
                    record.headers().add(new RecordHeader("null", (byte[]) null));
                }
                sent.add(producer.send(record));
            }
            for (int i = 0; i < COUNT; i++) {
                expect(sent.get(i).get().offset() == i, "offset " + i);
            }
        }
    }

    static KafkaConsumer<byte[], byte[]> consumer(String bootstrap, String group) {
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        config.put("group.id", group);
        config.put("auto.offset.reset", "earliest");
        config.put("enable.auto.commit", "false");
        config.put("heartbeat.interval.ms", "100");
        return new KafkaConsumer<>(
            config, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    static List<ConsumerRecord<byte[], byte[]>> read(KafkaConsumer<byte[], byte[]> consumer, int count) {
        List<ConsumerRecord<byte[], byte[]>> records = new ArrayList<>();
        long deadline = System.currentTimeMillis() + 60_000;
        while (records.size() < count) {
            expect(System.currentTimeMillis() < deadline, records.size() + " records of "
                + consumer.assignment() + ", " + consumer.groupMetadata());
            consumer.poll(Duration.ofMillis(200)).forEach(records::add);
        }
        expect(records.size() == count, records.size() + " records, not " + count);
        return records;
    }

    static void check(List<ConsumerRecord<byte[], byte[]>> records) {
        for (int i = 0; i < COUNT; i++) {
            ConsumerRecord<byte[], byte[]> r = records.get(i);
            expect(r.offset() == i && r.timestamp() == EPOCH_MS + i, r);
            expect(java.util.Arrays.equals(r.key(), key(i)), "key of " + r);
            expect(java.util.Arrays.equals(r.value(), value(i)), "value of " + r);
            expect(r.headers().toArray().length == (i % 3 == 0 ? 2 : 0), "headers of " + r);
            expect(r.leaderEpoch().isPresent(), "epoch of " + r);
        }
    }

    static void seekByTime(KafkaConsumer<byte[], byte[]> consumer, TopicPartition place) {
        OffsetAndTimestamp found =
            consumer.offsetsForTimes(Map.of(place, EPOCH_MS + 700)).get(place);
        expect(found.offset() == 700 && found.timestamp() == EPOCH_MS + 700, found);
        expect(consumer.offsetsForTimes(Map.of(place, EPOCH_MS + COUNT)).get(place) == null, "none");
    }

    static byte[] key(int i) {
        return i % 7 == 0 ? null : bytes("key " + i);
    }

    static byte[] value(int i) {
        return i % 11 == 0 ? null : bytes("the same again and again " + i);
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static void expect(boolean isSo, Object what) {
        if (!isSo) {
            throw new AssertionError(what);
        }
    }
}
