"""The cluster's state: leaders, the controller that changes it, and its storage. [P]"""
