package config

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"

	"github.com/timerd-io/timerd/internal/textfile"
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
			f.report(p.server+"_CERT", err)
		}
	}
	if p.ca == "" {
		return nil
	}
	pool, err := p.authorities()
	if err != nil {
		f.report(p.server+"_CA", err)
	}
	return pool
}

// authorities reads the certificate authorities.
func (p pemFiles) authorities() (*x509.CertPool, error) {
	pem, err := textfile.Read(p.ca)
	if err != nil {
		return nil, fmt.Errorf("%s_%s_CA: %w: want a readable PEM file", prefix, p.server, err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s_%s_CA: %s holds no certificate: want certificate authorities in PEM", prefix, p.server, p.ca)
	}
	return pool, nil
}

// clientCertificate reads the client certificate, anew for each connection: those that are renewed every few days need no
// restart.
func (p pemFiles) clientCertificate(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	pair, err := readPair(p.cert, p.key)
	if err != nil {
		return nil, fmt.Errorf("%s_%s_CERT: %s with TIMERD_%s_KEY=%s: %w", prefix, p.server, p.cert, p.server, p.key, err)
	}
	return &pair, nil
}

// readPair reads a certificate and its private key from their files.
func readPair(certFile, keyFile string) (tls.Certificate, error) {
	cert, err := textfile.Read(certFile)
	if err != nil {
		return tls.Certificate{}, err
	}
	key, err := textfile.Read(keyFile)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(cert, key)
}
