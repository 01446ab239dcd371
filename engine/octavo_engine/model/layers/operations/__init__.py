"""The operations that layers call, and the choice of the quickest ones for a device."""
