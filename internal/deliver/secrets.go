package deliver

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strings"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"go.yaml.in/yaml/v4"

	"github.com/timerd-io/timerd/internal/textfile"
	"github.com/timerd-io/timerd/internal/yamlfile"
)

// Prefixes of secrets and header values kept outside the file.
const (
	fromVariable = "env:"
	fromFile     = "file:"
)

// secret adds a secret. Its errors show no part of the secret.
func (f *file) secret(e *Endpoint, text string) error {
	secret, elsewhere, err := f.lookUp(text)
	if err != nil {
		return err
	}
	if !elsewhere {
		return errors.New("want env:NAME or file:PATH: a secret has no place in this file")
	}
	bare := strings.TrimPrefix(secret, "whsec_")
	key, err := base64.StdEncoding.DecodeString(bare)
	if err != nil || len(key) < minSecretBytes || len(key) > maxSecretBytes {
		return fmt.Errorf("%s: want whsec_ and %d to %d bytes in base64, the form of Standard Webhooks: echo "+
			"whsec_$(openssl rand -base64 32)",
			text, minSecretBytes, maxSecretBytes)
	}
	signer, err := standardwebhooks.NewWebhookRaw(key)
	if err != nil {
		return fmt.Errorf("%s: invalid secret", text)
	}
	e.signers = append(e.signers, signer)
	e.secrets = append(e.secrets, bare)
	return nil
}

// lookUp returns the value of env:NAME or file:PATH, without surrounding white space, or the text itself.
func (f *file) lookUp(text string) (value string, elsewhere bool, err error) {
	if name, ok := strings.CutPrefix(text, fromVariable); ok {
		if value, ok = f.variable(name); !ok || value == "" {
			return "", true, fmt.Errorf("the environment variable %s is not set", name)
		}
		return value, true, nil
	}
	if name, ok := strings.CutPrefix(text, fromFile); ok {
		content, err := textfile.Read(name)
		if err != nil {
			return "", true, err
		}
		if len(content) == 0 {
			return "", true, fmt.Errorf("%s is empty", name)
		}
		return string(content), true, nil
	}
	return text, false, nil
}

// headers reads the further headers of each call.
func (f *file) headers(e *Endpoint, value *yaml.Node) (faults []error) {
	if value.Kind != yaml.MappingNode {
		return []error{errors.New("want names and values, such as X-Shop: shop-1")}
	}
	e.Headers = http.Header{}
	reserved := map[string]bool{
		"Host": true, "Content-Type": true, "Content-Length": true, "Transfer-Encoding": true, "Connection": true,
		"Trailer": true, "Te": true,
		"Upgrade": true, "Keep-Alive": true, "Proxy-Authorization": true, "Proxy-Connection": true, "Expect": true,
		"Accept-Encoding": true,
		"Webhook-Id":      true, "Webhook-Timestamp": true, "Webhook-Signature": true,
	}
	for name, item := range yamlfile.Pairs(value) {
		canonical := http.CanonicalHeaderKey(name.Value)
		switch {
		case !isToken(name.Value):
			faults = append(faults, fmt.Errorf("%.40q is not a header name", name.Value))
			continue
		case reserved[canonical]:
			faults = append(faults, fmt.Errorf("%s is set by timerd or by HTTP", canonical))
			continue
		case e.Headers[canonical] != nil:
			faults = append(faults, fmt.Errorf("%s occurs twice", canonical))
			continue
		case item.Kind != yaml.ScalarNode || item.ShortTag() == "!!null":
			faults = append(faults, fmt.Errorf("%s: want one value", canonical))
			continue
		}
		text, elsewhere, err := f.lookUp(item.Value)
		if err == nil && strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' }) {
			err = errors.New("want printable ASCII only")
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", canonical, err))
			continue
		}
		e.Headers.Set(canonical, text)
		if elsewhere {
			e.secretHeaders = append(e.secretHeaders, canonical)
			e.secrets = append(e.secrets, text)
			for word := range strings.FieldsSeq(text) { // as in Bearer t0k3n: a host may send back the token alone
				if len(word) >= minSecretWord {
					e.secrets = append(e.secrets, word)
				}
			}
		}
	}
	return faults
}

// isToken reports whether a text can be a header name.
func isToken(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return r <= ' ' || r > '~' || strings.ContainsRune(`()<>@,;:\"/[]?={}`, r)
	})
}
