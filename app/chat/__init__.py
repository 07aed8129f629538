"""Conversations in the browser: who talks to what, in which order, and the process that answers."""
