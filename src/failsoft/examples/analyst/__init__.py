"""An analyst over tables: questions in English and Chinese, answered with numbers, charts and where they came from."""
