package config

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
)

// pemFiles are the files for TLS with a server, "" for none.
type pemFiles struct {
	server        string // NATS or REDIS, as in the names of the variables
	ca, cert, key string
}

// check reports files that cannot be used, which would show only at the first connect, and some of them one by one. It
// returns the certificate authorities, nil for those that the system knows.
func (p pemFiles) check(f *faults) *x509.CertPool {
	switch {
	case p.cert == "" && p.key == "":
	case p.key == "":
		f.addf(p.server+"_KEY", "is not set: the certificate %s of TIMERD_%s_CERT needs its private key", p.cert, p.server)
	case p.cert == "":
		f.addf(p.server+"_CERT", "is not set: the private key of TIMERD_%s_KEY needs its certificate", p.server)
	default:
		if _, err := p.clientCertificate(nil); err != nil {
			f.errs = append(f.errs, err)
		}
	}
	if p.ca == "" {
		return nil
	}
	pem, err := os.ReadFile(p.ca)
	if err != nil {
		f.addf(p.server+"_CA", "%w: want a readable PEM file", err)
		return nil
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		f.addf(p.server+"_CA", "%s holds no certificate: want certificate authorities in PEM", p.ca)
	}
	return pool
}

// clientCertificate reads the client certificate, anew for each connection: those that are renewed every few days need no
// restart.
func (p pemFiles) clientCertificate(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(p.cert, p.key)
	if err != nil {
		return nil, fmt.Errorf("%s_%s_CERT: %s with TIMERD_%s_KEY=%s: %w", prefix, p.server, p.cert, p.server, p.key, err)
	}
	return &pair, nil
}
