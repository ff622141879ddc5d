"""A worker over HTTP: its pages, its metrics, the server, and questions to other workers. [P]"""
