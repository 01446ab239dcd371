"""The LLMService: its model, the CRD made from it, and the names, labels and conditions that go with it."""
