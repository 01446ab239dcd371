"""From what is asked for to what is: watch, observe, render, apply, summarize."""
