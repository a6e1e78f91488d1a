// Package apitest checks the console's answers against its OpenAPI document, in a module of its own for the library that does.
package apitest
