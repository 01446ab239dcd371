"""Downloads of models from the Hugging Face Hub and from S3: which files, where they are kept, and their progress."""
