"""The engine's public face: Engine (a loaded model) and Session (one timeline)."""
from moegg.engine.engine import Engine
from moegg.engine.session import Session, SyncResult

__all__ = ["Engine", "Session", "SyncResult"]
