"""The states of many sites on their devices, filled in one buffer while the other is read out."""
