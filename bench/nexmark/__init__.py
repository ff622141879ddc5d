"""Nexmark: an auction house's events, and the queries that the benchmark asks of them."""
