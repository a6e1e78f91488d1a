package config

import (
	"os"
	"reflect"
	"strings"
	"unicode"
	"unicode/utf8"
)

// trim cuts off the leavings of files and shells around a value: white space, line ends and byte order marks.
func trim(value string) string {
	return strings.TrimFunc(value, func(r rune) bool { return unicode.IsSpace(r) || r == '\ufeff' })
}

// secret is the tag of a field whose white space may be part of the value: trim cuts line ends only.
const secret = "secret"

// trimFields trims the texts of a struct and of the structs in it.
func trimFields(fields reflect.Value) {
	for i := range fields.NumField() {
		field := fields.Field(i)
		_, isSecret := fields.Type().Field(i).Tag.Lookup(secret)
		switch {
		case field.Kind() == reflect.Struct:
			trimFields(field)
		case isSecret:
			field.SetString(strings.TrimRight(field.String(), "\r\n"))
		default:
			field.SetString(trim(field.String()))
		}
	}
}

// quotes are the quotation marks of shells and word processors.
const quotes = "\"'`“”‘’„«»"

// isQuoted reports whether a value begins and ends with a quote.
func isQuoted(value string) bool {
	first, _ := utf8.DecodeRuneInString(value)
	last, size := utf8.DecodeLastRuneInString(value)
	return len(value) > size && strings.ContainsRune(quotes, first) && strings.ContainsRune(quotes, last)
}

// quotedVariables returns the variables of timerd whose values are in quotes, without the prefix.
func quotedVariables() map[string]bool {
	quoted := map[string]bool{}
	for _, name := range knownVariables() {
		if isQuoted(trim(os.Getenv(prefix + "_" + name))) {
			quoted[name] = true
		}
	}
	return quoted
}
