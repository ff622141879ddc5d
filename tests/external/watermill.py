"""Watermill's tests of its Kafka publisher and subscriber: the suite that all its brokers pass."""

from __future__ import annotations

from go_tests import go_suite

SUITE = go_suite(
    "watermill",
    "github.com/ThreeDotsLabs/watermill-kafka/v3",
    "v3.0.6",
    "./pkg/kafka",
    environment=lambda target: {"WATERMILL_TEST_KAFKA_BROKERS": target.bootstrap},
    passing_min=118,
)
