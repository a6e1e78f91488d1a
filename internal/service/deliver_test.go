package service

import (
	"net/http"
	"net/url"
	"testing"
)

// The proxies of the environment are told, and their passwords are not.
func TestProxiesAreTold(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ proxy, want string }{
		{"", ""},
		{"http://proxy.example:3128", "http://proxy.example:3128"},
		{"http://user:s3cr3t@proxy.example:3128", "http://user:xxxxx@proxy.example:3128"},
		{"http://%", "one whose URL cannot be read"},
	} {
		got := proxyOf("https", func(q *http.Request) (*url.URL, error) {
			if test.proxy == "" || q.URL.Scheme != "https" {
				return nil, nil
			}
			return url.Parse(test.proxy)
		})
		if got != test.want {
			t.Errorf("%s: told as %q, want %q", test.proxy, got, test.want)
		}
	}
}
