"""Connections to brokers: those of clients, and of brokers among themselves. [P]"""
