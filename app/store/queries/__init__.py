"""What is asked of the store: a module for each noun, plain functions on a session that return
frozen dataclasses."""
