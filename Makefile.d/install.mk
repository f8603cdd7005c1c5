# make install DESTDIR= PREFIX=/usr PYTHON=/usr/lib/hetsched/venv/bin/python3 SLURM_PLUGIN_DIR=
# PYTHON is the interpreter that the commands run on; it must have what setup.py names, and pyslurm for hetschedd.
PREFIX ?= /usr
PYTHON ?= $(PREFIX)/lib/hetsched/venv/bin/python3
SYSCONFDIR ?= /etc
UNITDIR ?= $(PREFIX)/lib/systemd/system
MANDIR ?= $(PREFIX)/share/man
INSTALL_LIB := $(PREFIX)/lib/hetsched
INSTALL_PYTHON := $(INSTALL_LIB)/python

.PHONY: install install-node install-controller

install: plugin-install ## Install everything under DESTDIR
	rm -rf $(DESTDIR)$(INSTALL_PYTHON)
	install -d $(DESTDIR)$(INSTALL_PYTHON)
	cp -R pyhetsched $(DESTDIR)$(INSTALL_PYTHON)/
	find $(DESTDIR)$(INSTALL_PYTHON) -name __pycache__ -prune -exec rm -rf {} +
	find $(DESTDIR)$(INSTALL_PYTHON) -type d -exec chmod 0755 {} + -o -type f -exec chmod 0644 {} +
	if [ -x $(DESTDIR)$(PYTHON) ]; then $(DESTDIR)$(PYTHON) -m compileall -q $(DESTDIR)$(INSTALL_PYTHON); fi
	$(call wrapper,$(PREFIX)/bin/hetsched,pyhetsched.cli.main)
	$(call wrapper,$(PREFIX)/sbin/hetschedd,pyhetsched.daemon.main)
	$(call wrapper,$(PREFIX)/sbin/hetsched-node,pyhetsched.node.main)
	install -D -m 0755 -t $(DESTDIR)$(INSTALL_LIB)/hooks slurm_plugins/hooks/prolog slurm_plugins/hooks/task-prolog \
	    slurm_plugins/hooks/epilog
	install -D -m 0644 -t $(DESTDIR)$(UNITDIR) systemd/*.service systemd/*.timer
	install -D -m 0644 systemd/hetsched.tmpfiles $(DESTDIR)$(PREFIX)/lib/tmpfiles.d/hetsched.conf
	install -D -m 0644 -t $(DESTDIR)$(PREFIX)/share/doc/hetsched $(wildcard docs/*.md) README.md CHANGELOG.md
	install -d $(DESTDIR)$(SYSCONFDIR)/hetsched
	# A configuration that the site has written is never overwritten.
	test -e $(DESTDIR)$(SYSCONFDIR)/hetsched/hetsched.toml || \
	    install -m 0644 systemd/hetsched.toml $(DESTDIR)$(SYSCONFDIR)/hetsched/hetsched.toml

# -I: neither the environment nor the current folder of whoever calls can put code into a command that root runs.
define wrapper
install -d $(dir $(DESTDIR)$(1))
printf '%s\n' '#!$(PYTHON) -I' 'import sys' 'sys.path.insert(0, "$(INSTALL_PYTHON)")' 'from $(2) import main' \
    'if __name__ == "__main__":' '    sys.exit(main())' > $(DESTDIR)$(1)
chmod 0755 $(DESTDIR)$(1)
endef
