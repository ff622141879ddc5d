"""The settings of brokers and topics: what there is, what is set, what is in force. [P]"""
