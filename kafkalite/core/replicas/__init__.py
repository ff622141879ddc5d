"""One broker's replicas: their logs, what others may see of them, their upkeep. [P]"""
