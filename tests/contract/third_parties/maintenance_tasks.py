"""Work through a table, in a task of that package's own."""

from maintenance_tasks.task import MaintenanceTask


class Fill(MaintenanceTask):
    """Seven items in batches of two."""

    batch_size = 2

    def collection(self):
        return list(range(7))

    def process(self, item): ...
