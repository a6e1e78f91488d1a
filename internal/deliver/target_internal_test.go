package deliver

import (
	"net/http"
	"strings"
	"testing"
)

// A URL out of a payload or a file is called as a browser would call it; a text that is still no URL is refused at
// once.
func TestURLsAsABrowserWritesThem(t *testing.T) {
	t.Parallel()
	e := &Endpoint{Schemes: []string{"http", "https"}, AnyPort: true}
	const refused = ""
	for in, want := range map[string]string{
		// The query.
		"http://h/ok?message=order 42 paid":        "http://h/ok?message=order%2042%20paid",
		"http://h/?x=1 HTTP/1.0":                   "http://h/?x=1%20HTTP/1.0",
		"http://h/?x=1 HTTP/1.1\r\nHost: evil\r\n": "http://h/?x=1%20HTTP/1.1Host:%20evil",
		"http://h?name=张三":                         "http://h?name=%E5%BC%A0%E4%B8%89",
		"http://h/?a=%20b+c&d=%E5%BC%A0":           "http://h/?a=%20b+c&d=%E5%BC%A0",
		"http://h/?q=\"<'>`{|}^[]\\?/#part":        "http://h/?q=%22%3C%27%3E`{|}^[]\\?/",
		"http://h/?x=\x01\x7f":                     "http://h/?x=%01%7F",
		"http://h/?a=100%&b=%zz&c=%4":              "http://h/?a=100%25&b=%25zz&c=%254",
		"http://h/?":                               "http://h/?",
		// The path.
		"http://h/a b/ü":           "http://h/a%20b/%C3%BC",
		"http://h/%zz/100%":        "http://h/%25zz/100%25",
		"http://h/a%2Fb|{c}^`\"<>": "http://h/a%2Fb%7C%7Bc%7D%5E%60%22%3C%3E",
		"http://h/a\\b":            "http://h/a/b",
		"http://h/\x00\x1fz":       "http://h/%00%1Fz",
		"http://h/:@!$&'()*+,;=":   "http://h/:@!$&'()*+,;=",
		"http://h/a#b c?d":         "http://h/a",
		"http://h/?a#":             "http://h/?a",
		"http://h/a%e5%BC%a0":      "http://h/a%e5%BC%a0",
		// White space.
		"http://h/hook ":                  "http://h/hook",
		" \t\r\n http://h/hook?a\u3000\n": "http://h/hook?a",
		"\ufeffhttp://h/\u00a0":           "http://h/",
		"ht\ntp://h/ho\tok?a=\r\nb":       "http://h/hook?a=b",
		// The host.
		"HTTP://H:80/":                  "http://h/",
		"http:\\\\h\\a":                 "http://h/a",
		"http://[::1]:8080/a b":         "http://[::1]:8080/a%20b",
		"http://[::ffff:127.0.0.1]/":    "http://127.0.0.1/",
		"https://xn--bcher-kva.example": "https://xn--bcher-kva.example",
		"https://bücher.example/":       refused,
		"http://１２７.０.０.１/":             refused,
		"http://a b/":                   refused,
		"http://a\x00b/":                refused,
		"http://%zz/":                   refused,
		"http://h\\@evil/":              "http://h/@evil/",
		"http://user@h/":                refused,
		"http://user:p w@h/":            refused,
		"http://h?@evil":                "http://h?@evil",
		"http://[fe80::1%25eth0]/":      refused,
		"http://[::1/":                  refused,
		// None.
		"":           refused,
		"   ":        refused,
		"h/path":     refused,
		"//h/path":   refused,
		"http:/h":    refused,
		"http://":    refused,
		"http:// /":  refused,
		"mailto:a b": refused,
		"http://h/" + strings.Repeat("张", maxURLBytes/9+1): refused,
	} {
		to, err := e.check(in)
		switch {
		case want == refused && err == nil:
			t.Errorf("%q is called as %s, want it refused", in, to.url)
		case want == refused:
		case err != nil:
			t.Errorf("%q: %v, want %s", in, err, want)
		case to.url.String() != want:
			t.Errorf("%q is called as %s, want %s", in, to.url, want)
		default:
			if again, err := e.check(want); err != nil || again.url.String() != want {
				t.Errorf("%s is called as %v, %v", want, again.url, err)
			}
			if r, err := http.NewRequest(http.MethodPost, to.url.String(), nil); err != nil ||
				strings.ContainsAny(r.URL.RequestURI(), " \r\n\t") {
				t.Errorf("%q: request %v, %v", in, r, err)
			}
		}
	}
}
