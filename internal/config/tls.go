package config

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"strings"

	"github.com/timerd-io/timerd/internal/textfile"
)

// pemFiles are the files for TLS with a server, "" for none.
type pemFiles struct {
	server        string // NATS or REDIS, as in the names of the variables
	context       string // the file of the context of the nats command that names them; "" for the variables
	ca, cert, key string
}

// name returns the beginning of a fault: the variable of the file CA, CERT or KEY, or the context.
func (p pemFiles) name(kind string) string {
	if p.context == "" {
		return prefix + "_" + p.server + "_" + kind
	}
	return fmt.Sprintf("%s_NATS_CONTEXT: %s of %s", prefix, strings.ToLower(kind), p.context)
}

// check reports unusable files, which would otherwise fail one by one at the first connect. It returns the certificate
// authorities, nil for the system's own.
func (p pemFiles) check(f *faults) *x509.CertPool {
	switch {
	case p.cert == "" && p.key == "":
	case p.key == "":
		f.report(p.server+"_KEY", fmt.Errorf("%s: is not set: the certificate %s of %s needs its private key",
			p.name("KEY"), p.cert, p.name("CERT")))
	case p.cert == "":
		f.report(p.server+"_CERT", fmt.Errorf("%s: is not set: the private key of %s needs its certificate",
			p.name("CERT"), p.name("KEY")))
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
		return nil, fmt.Errorf("%s: %w: want a readable PEM file", p.name("CA"), err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s: %s holds no certificate: want certificate authorities in PEM", p.name("CA"), p.ca)
	}
	return pool, nil
}

// clientCertificate reads the client certificate for each connection again, so that a certificate renewed every few
// days needs no restart.
func (p pemFiles) clientCertificate(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	pair, err := readPair(p.cert, p.key)
	if err != nil {
		return nil, fmt.Errorf("%s: %s with %s=%s: %w", p.name("CERT"), p.cert, p.name("KEY"), p.key, err)
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
