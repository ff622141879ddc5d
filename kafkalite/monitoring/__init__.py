"""What others may watch of a broker over HTTP: its metrics and its health.                 [IO]"""
