"""Everything that is known of runs, in one database: what was told by their monitors, and what
people asked of them."""
