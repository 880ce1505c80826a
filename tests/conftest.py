"""Pytest puts this folder on the import path because of this file: its kits are found here."""
