# The cluster of the demo, the tests and the benches: real Slurm daemons in namespaces of their own (tests/testbed).
TESTBED := tests/testbed/testbed

.PHONY: demo shell bench

demo: ## Build what is needed, boot a mixed cluster, play a scenario of ordinary users
	@$(TESTBED) build
	@$(TESTBED) run -- python tests/demo/demo.py

shell: ## An interactive shell in a fresh cluster
	@$(TESTBED) build
	@$(TESTBED) shell

bench: ## Measure the main path: submits, hooks, prologs (build/bench/main_path.json)
	@$(TESTBED) build
	@$(TESTBED) run -- python tests/bench/main_path.py
