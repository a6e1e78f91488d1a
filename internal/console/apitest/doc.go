// Package apitest checks the console's answers against its OpenAPI document, in a module of its own, because of the
// library for that.
package apitest
