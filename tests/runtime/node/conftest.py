"""Pytest puts this folder on the import path because of this file: `small_engine` is found here."""
