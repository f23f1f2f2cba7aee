"""Callbacks for trainers, one file each over the public API; each imports its trainer."""
