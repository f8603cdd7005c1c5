# Benchmarks that need no cluster; each prints a table and writes it to build/bench/.
.PHONY: bench-mig bench-policies

bench-mig: venv ## Steering around holes and planning across GPUs (build/bench/mig.json)
	@mkdir -p build/bench
	$(PY) tests/bench/mig.py

bench-policies: venv ## Policies beside Gavel's, and how long they take (build/bench/policies.json)
	@mkdir -p build/bench
	$(PY) tests/bench/policies.py
