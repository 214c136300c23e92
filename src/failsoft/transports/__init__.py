"""What carries requests out of the process: the HTTP port by aiohttp, name look-ups that cannot hang the rest."""
