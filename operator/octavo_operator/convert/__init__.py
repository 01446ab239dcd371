"""Manifests of other serving systems as LLMServices (`octavo-operator convert`)."""

from octavo_operator.convert.convert import Conversions, convert

__all__ = ["Conversions", "convert"]
