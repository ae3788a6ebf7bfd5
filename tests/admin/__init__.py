"""The admin: pages, permissions, operations, paging."""
