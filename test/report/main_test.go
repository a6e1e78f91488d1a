package main

import (
	"strings"
	"testing"
)

func TestReport(t *testing.T) {
	const in = `{"Action":"build-output","ImportPath":"m/broken","Output":"broken.go:1: undefined: x\n"}
{"Action":"output","Package":"m/a","Test":"TestGood","Output":"nobody wants to know\n"}
{"Action":"pass","Package":"m/a","Test":"TestGood","Elapsed":20.5}
{"Action":"output","Package":"m/a","Test":"TestBad","Output":"    a_test.go:7: why\n"}
{"Action":"fail","Package":"m/a","Test":"TestBad/sub","Elapsed":0.1}
{"Action":"fail","Package":"m/a","Test":"TestBad","Elapsed":0.25}
{"Action":"output","Package":"m/a","Output":"FAIL\tm/a\t61.000s\n"}
{"Action":"fail","Package":"m/a","Elapsed":61}
{"Action":"output","Package":"m/b","Output":"PASS\n"}
{"Action":"output","Package":"m/b","Output":"ok  \tm/b\t0.100s\n"}
{"Action":"pass","Package":"m/b","Elapsed":0.1}
{"Action":"pass","Package":"m/b/cached","Test":"TestSlow","Elapsed":30}
{"Action":"output","Package":"m/b/cached","Output":"ok  \tm/b/cached\t(cached)\n"}
{"Action":"pass","Package":"m/b/cached","Elapsed":30}
not of go test
`
	const want = `broken.go:1: undefined: x
    a_test.go:7: why
FAIL	m/a	61.000s
ok  	m/b	0.100s
ok  	m/b/cached	(cached)
not of go test

slowest tests:
    20.5s  m/a TestGood  SLOW: over 20s
     0.2s  m/a TestBad

slowest packages:
    61.0s  m/a  SLOW: over 1m0s
     0.1s  m/b

2 passed, 2 failed, 0 skipped
`
	var out strings.Builder
	if err := report(strings.NewReader(in), &out); err != nil {
		t.Fatal(err)
	}
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", &out, want)
	}
}
