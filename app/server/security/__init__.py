"""Who may ask this server for what. Each module is one check; ``checks`` puts them in order."""
