# What is played and measured on the test cluster (testbed.mk has its settings).
.PHONY: demo shell bench

demo: testbed ## Build what is needed, boot a mixed cluster, play a scenario of ordinary users
	@$(TESTBED) run $(TESTBED_OPTIONS) -- python tests/demo/demo.py

shell: testbed ## An interactive shell in a fresh cluster
	@$(TESTBED) shell $(TESTBED_OPTIONS)

bench: testbed ## Measure the main path: submits, hooks, prologs (build/bench/main_path.json)
	@$(TESTBED) run $(TESTBED_OPTIONS) -- python tests/bench/main_path.py
