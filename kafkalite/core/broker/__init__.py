"""The broker: what handlers act on. [P]"""
