// Package conformance runs the cases of cases.json against the Go client. Clients in other languages run the same
// cases: README.md says how to read them.
package conformance
