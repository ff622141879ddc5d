"""Our streams engine beside Kafka Streams: see `__main__`."""
