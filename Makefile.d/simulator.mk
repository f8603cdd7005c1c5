# Policies on the simulated machine, Gavel's published figures beside ours; writes build/bench/policies.json.
.PHONY: bench-policies
bench-policies: venv ## Policies against Gavel's published figures, solve times, a simulated month
	OPENBLAS_NUM_THREADS=1 $(PY) tests/bench/policies.py --out build/bench/policies.json
