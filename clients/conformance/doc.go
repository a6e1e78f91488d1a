// Package conformance runs the cases of cases.json against the Go client. Clients in other languages run the same cases:
// docs/clients.md says how to read them.
package conformance
