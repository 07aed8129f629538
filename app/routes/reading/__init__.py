"""What the Trajectories page is made of: its address, its parts, and how texts are shown."""
