"""Pytest puts this folder on the import path because of this file: `process_kit` is found here."""
