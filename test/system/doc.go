// Package system runs whole systems for tests: a Redis, a NATS and any number of timerd processes, on a program that is
// built once. The tests are in the folders below, by subject; core has the ones that `make test` runs, the others are
// for `make test-all`.
package system
