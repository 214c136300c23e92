"""An import-linter contract: named packages import nothing but what is listed.

The linter's own contracts say what is forbidden; for the lowest layers it is shorter and safer to say what is
allowed. The standard library always is.
"""

import sys
from typing import Any

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


class OnlyContract(Contract):
    """Each of `modules` (with all below it) imports only itself, `allowed` packages and the standard library."""

    type_name = "only"

    modules: Any = fields.ListField(subfield=fields.StringField())
    allowed: Any = fields.ListField(subfield=fields.StringField(), required=False, default=[])

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Look at every direct import; import chains add nothing, as each link is looked at."""
        wrong = []
        for package in self.modules:
            if package not in graph.modules:
                continue  # not there yet
            permitted = (package, *self.allowed)
            for importer in sorted({package, *graph.find_descendants(package)}):
                for imported in sorted(graph.find_modules_directly_imported_by(importer)):
                    if imported.partition(".")[0] not in sys.stdlib_module_names and not any(
                        imported == name or imported.startswith(f"{name}.") for name in permitted
                    ):
                        lines = [
                            detail["line_number"]
                            for detail in graph.get_import_details(importer=importer, imported=imported)
                        ]
                        wrong.append((importer, imported, lines))
        return ContractCheck(kept=not wrong, metadata={"wrong": wrong})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Name every import that is too much."""
        for importer, imported, lines in check.metadata["wrong"]:
            output.print_error(f"{importer} imports {imported} (line {', '.join(map(str, lines))})", bold=False)
