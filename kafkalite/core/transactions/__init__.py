"""Transactions: the machine of one __transaction_state partition, and its markers. [P]"""
