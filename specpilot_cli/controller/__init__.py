"""Paired runs: two systems on the same requests, timed by our own clock, judged by rules fixed beforehand.

Nothing here imports anything from a tree that it measures; engines are reached through `engine.base` and HTTP only.
"""
