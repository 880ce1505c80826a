"""Pytest puts this folder on the import path because of this file: `core_kit` and `fleet` are found here."""
