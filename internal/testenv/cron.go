package testenv

import (
	"bytes"
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"
)

// CronCase is an expression with its results.
type CronCase struct {
	Expression string `json:"expression"`
	Zone       string `json:"zone"`
	Fault      string `json:"fault"`   // a part of the error; empty: it is taken
	Planned    bool   `json:"planned"` // the function library takes it all the same: Redis knows no zones
}

// CronCases reads the cases of a file: a line of JSON each.
func CronCases(t testing.TB, path string) (cases []CronCase) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(text) {
		var c CronCase
		if err := json.Unmarshal(line, &c); err != nil {
			t.Fatalf("%s: %s: %v", path, line, err)
		}
		cases = append(cases, c)
	}
	return cases
}

// Proposed returns the expression with the fault's proposal in place of a range that goes down; "" if it proposes
// nothing.
func (c CronCase) Proposed(fault error) string {
	found := regexp.MustCompile(`"([^"]+)": a range goes up: write ([^;]+);`).FindStringSubmatch(fault.Error())
	if found == nil {
		return ""
	}
	return strings.Replace(c.Expression, found[1], found[2], 1)
}
