"""The installed proxy: its data folder, backups, model files, and checks."""
