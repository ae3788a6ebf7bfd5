"""Packages that build on Django's tasks, themselves, with our backend: `nox -s third_parties`.

They are no dependency of ours, and their releases are not in our hands, so no test asks for them.
`tests/contract/test_third_parties.py` does what they do, in code of our own.
"""
