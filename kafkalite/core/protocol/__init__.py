"""Bytes to values and back: the Apache Kafka wire protocol.                              [P]"""
