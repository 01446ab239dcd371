"""Reconciles LLMServices: watch, observe, render, apply, summarize."""
