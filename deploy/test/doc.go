// Package deploytest checks the files for other programs, in deploy/ and the root, with those programs:
// docker-compose.yml by the library of docker compose, the Helm chart by helm and the types of the Kubernetes API,
// rules and queries by promtool. It is a module of its own so that timerd does not depend on them.
package deploytest
