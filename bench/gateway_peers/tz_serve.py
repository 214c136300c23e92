"""TensorZero's in-process HTTP gateway, kept open; prints its base URL. Runs in TensorZero's own environment."""

import sys
import time

from tensorzero import _start_http_gateway

gateway = _start_http_gateway(
    config_file=sys.argv[1], clickhouse_url=None, postgres_url=None, valkey_url=None, async_setup=False
)
print("BASE", gateway.base_url, flush=True)
while True:
    time.sleep(3600)
