"""Runs of the browser: prepared in a folder of their own, queued, and trained by a process each."""
