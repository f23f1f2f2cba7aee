"""The tensors themselves: `capture` keeps them, `edit` changes them, `trace` tells what came."""
