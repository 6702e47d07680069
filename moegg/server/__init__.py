"""The HTTP server: dialects over one request type (ask.py), one engine thread (worker.py), routes (app.py), sockets (serve.py)."""
