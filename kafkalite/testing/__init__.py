"""Fakes for tests, each held to the same suite as the real thing.                        [P]"""
