import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Transactions BOOTSTRAP TOPIC GROUP: committed, aborted, open and fenced; offsets with them. */
public class Transactions {
    static String bootstrap;
    static String topic;
    static String group;

    public static void main(String[] args) {
        bootstrap = args[0];
        topic = args[1];
        group = args[2];
        TopicPartition place = new TopicPartition(topic, 0);
        try (KafkaProducer<String, String> first = producer(); KafkaConsumer<String, String> reader = consumer()) {
            send(first, 0, 10);
            first.commitTransaction();
            send(first, 10, 20);
            first.abortTransaction();
            first.beginTransaction();
            reader.subscribe(List.of(topic));
            expect(values(reader, 10).equals(range(0, 10)), "committed records alone");
            first.sendOffsetsToTransaction(Map.of(place, new OffsetAndMetadata(10)), reader.groupMetadata());
            first.commitTransaction();
            expect(reader.committed(Set.of(place)).get(place).offset() == 10, "committed");
            send(first, 20, 30);  // left open
            try (KafkaProducer<String, String> heir = producer()) {
                send(heir, 30, 40);
                heir.commitTransaction();
                expect(values(reader, 10).equals(range(30, 40)), "what the heir committed");
                try {
                    first.commitTransaction();
                    throw new AssertionError("the first producer was not fenced");
                } catch (KafkaException fenced) {
                    System.out.println("fenced: " + fenced.getClass().getSimpleName());
                }
            }
        }
        System.out.println("done");
    }

    static KafkaProducer<String, String> producer() {
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        config.put("transactional.id", "java-" + topic);
        config.put("linger.ms", "5");
        KafkaProducer<String, String> made =
            new KafkaProducer<>(config, new StringSerializer(), new StringSerializer());
        made.initTransactions();
        return made;
    }

    static void send(KafkaProducer<String, String> producer, int from, int to) {
        producer.beginTransaction();
        for (int i = from; i < to; i++) {
            producer.send(new ProducerRecord<>(topic, 0, null, "" + i));
        }
        producer.flush();
    }

    static KafkaConsumer<String, String> consumer() {
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        config.put("group.id", group);
        config.put("auto.offset.reset", "earliest");
        config.put("enable.auto.commit", "false");
        config.put("isolation.level", "read_committed");
        config.put("heartbeat.interval.ms", "100");
        return new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer());
    }

    static List<Integer> values(KafkaConsumer<String, String> consumer, int count) {
        List<Integer> values = new ArrayList<>();
        long deadline = System.currentTimeMillis() + 60_000;
        while (values.size() < count) {
            expect(System.currentTimeMillis() < deadline, values);
            for (ConsumerRecord<String, String> r : consumer.poll(Duration.ofMillis(200))) {
                values.add(Integer.parseInt(r.value()));
            }
        }
        return values;
    }

    static List<Integer> range(int from, int to) {
        return java.util.stream.IntStream.range(from, to).boxed().toList();
    }

    static void expect(boolean isSo, Object what) {
        if (!isSo) {
            throw new AssertionError(what);
        }
    }
}
