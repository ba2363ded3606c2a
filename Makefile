.DEFAULT_GOAL := help
.PHONY: help install test slow lint format ci

help:  ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install:  ## install fewnlu for working on it (into the active environment)
	pip install -q -c constraints.txt -e '.[test]'

test:  ## the tests, without the slow ones
	pytest -n 2

slow:  ## the slow tests: the embedded model and the README's commands
	pytest -m slow

lint:  ## ruff, mypy and the packaged data; changes nothing
	ruff check .
	ruff format --check .
	mypy
	python fewnlu/tasks/data/check.py

format:  ## sort imports and format
	ruff check --select I --fix .
	ruff format .

ci:  ## everything, in a virtual environment of its own
	.ci/run
